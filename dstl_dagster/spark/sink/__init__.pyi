from dstl_dagster.spark.sink.writers import SaveWriter as SaveWriter, StreamWriter as StreamWriter
