"""The Snappy library that Flink reads with, on files written here: a real JVM, and no Spark.

Flink decompresses a changelog with xerial's `SnappyFramedInputStream`, checksums unverified. PySpark ships
that library.
"""

from __future__ import annotations

import random
import uuid
from pathlib import Path
from typing import Any

import pytest

from dstl_dagster.format import SequenceNumber, StateChange, StateChangeSet
from dstl_dagster.format.changelog_file.compression import Compression
from dstl_dagster.format.changelog_file.encoding import ChangelogFileEncoder
from dstl_dagster.spark.local.java import choose_java

pyspark = pytest.importorskip("pyspark")
java_gateway = pytest.importorskip("py4j.java_gateway")

JARS = Path(pyspark.__file__).parent / "jars"


def _file(compression: Compression) -> tuple[bytes, bytes]:
    """A file of three sets, one of them larger than a Snappy block, and its uncompressed body."""
    random_bytes = random.Random(5)
    large = b"".join(random_bytes.choice([b"state", b"of", b"keys"]) for _ in range(50_000))
    sets = [[StateChange(1, b"a"), StateChange(-1, b"meta")], [StateChange(2, large)], [StateChange(3, b"")]]
    made = []
    for kind in (compression, Compression.NONE):
        encoder = ChangelogFileEncoder(kind, 1 << 20)
        pieces = [encoder.header()]
        for number, changes in enumerate(sets):
            change_set = StateChangeSet(uuid.UUID(int=1), SequenceNumber.of(number), changes)
            pieces += [bytes(piece) for piece in encoder.change_set(change_set)]
        body_bytes = sum(map(len, pieces))
        pieces += list(encoder.footer())
        made.append((b"".join(pieces), body_bytes))
    plain, body_bytes = made[1]
    return made[0][0], plain[1:body_bytes]


@pytest.mark.spark
def test_javas_snappy_reads_our_frames_and_skips_our_footer(tmp_path: Path) -> None:
    """To the very end of the file the stream yields the body and nothing else, with checksums or without."""
    content, body = _file(Compression.SNAPPY)
    path = tmp_path / "file"
    path.write_bytes(content)
    classpath = ":".join(str(jar) for jar in [*JARS.glob("snappy-java*.jar")])
    gateway_jar = next(JARS.glob("py4j*.jar"))
    port = java_gateway.launch_gateway(
        jarpath=str(gateway_jar),
        classpath=classpath,
        java_path=str(_java()),
        die_on_exit=True,
    )
    gateway = java_gateway.JavaGateway(gateway_parameters=java_gateway.GatewayParameters(port=port))
    try:
        java: Any = gateway.jvm
        for verify in (True, False):
            file = java.java.io.FileInputStream(str(path))
            assert file.read() == 1
            stream = java.org.xerial.snappy.SnappyFramedInputStream(file, verify)
            assert bytes(stream.readAllBytes()) == body
            stream.close()
    finally:
        gateway.shutdown()


def _java() -> Path:
    return choose_java().home / "bin" / "java"
