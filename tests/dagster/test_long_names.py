"""At 1,280 pixels Dagster's page gives a value 25 characters, and cuts the column where a word is longer."""

# No postponed annotations here: Dagster reads the types of an asset's arguments as objects.

import re
from collections.abc import Mapping

import dagster as dg
import pyarrow as pa
import pytest

import dstl_dagster as dstl
from dstl_dagster.checkpoint import FileReport
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.storage import open_store
from tests.dagster.memory_store import MemoryStore

pytestmark = pytest.mark.dagster

OPERATOR = "customer_totals_by_country_and_channel_of_last_ninety_days_x"
KEY = "identifier_of_the_customer_in_the_system_of_record_of_a_shop"
FILE = "reports/report.of.all.customers.by.country.and.channel.of.the.months"
SOURCE = "inboxofalltheordersofallthecustomersofalltheshopsofthegroup"
PARTITION = "germany_and_austria_and_switzerland_and_liechtenstein"
URI = "memory://long-names"
WIDTH = 25
LINK = re.compile(r"\]\([^)]*\)")
PARTS = dg.StaticPartitionsDefinition([PARTITION])
JOB = dstl.JobAssets("orders", operators=(OPERATOR,), sample=2)


@dstl.checkpointed_asset(JOB, keys=[KEY], operator=OPERATOR, source=SOURCE, partitions_def=PARTS)
def totals(batch: dstl.CheckpointBatch) -> pa.Table:
    store = open_store(URI)
    stream = GSRecoverableWriter(store, attempt=batch.attempt.attempt).open(store.uri_of(FILE))
    stream.write(b"a line\n")
    committer = stream.close_for_commit()
    batch.add(FileReport(committer.recoverable, tuple(committer.components), rows=1, format="text"))
    return pa.table({KEY: ["a" * 70]})


def widest(metadata: Mapping[str, object]) -> str:
    """The longest word of all texts that the page shows in place."""
    words = [""]
    for value in metadata.values():
        text = getattr(value, "value", value)
        if isinstance(text, str) and not text.startswith("memory://"):
            words += re.split(r"[\s/\u200b-]", LINK.sub(" ", text).replace("`", ""))
    return max(words, key=len)


def test_no_word_of_an_event_is_wider_than_its_column() -> None:
    """Operator, keys, source, batch and file have sixty characters; a link leads to the whole name."""
    with dg.DagsterInstance.ephemeral() as instance:
        store = MemoryStore(URI, instance)
        specs = dstl.checkpoint_asset_specs(JOB, partitions_def=PARTS)
        assert store.run(totals, *specs, selection=[totals.key], partition=PARTITION).success
        for key in (totals.key, *(spec.key for spec in specs)):
            metadata = store.event(key).metadata
            assert len(widest(metadata)) <= WIDTH, key
            assert "\u200b" not in "".join(LINK.findall(str(metadata)))
        assert "\u200b" in store.event(JOB.operator_key(OPERATOR)).metadata["keys"].value
        for spec in (*totals.specs, *specs):
            assert len(widest(spec.metadata)) <= WIDTH, spec.key
        assert store.rows(OPERATOR) == [{KEY: "a" * 70}]
        assert dstl.JobAssets("orders").found_in(specs).operators == (OPERATOR,)
