"""`dstl gcs-server`: Google Cloud Storage on loopback. Owns the options, not the server (`testing`)."""

from __future__ import annotations

import signal
from pathlib import Path

import click


@click.command("gcs-server")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=4443, show_default=True, help="0 picks a free one."
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep objects here, across restarts. By default they are gone with the server.",
)
@click.option("--bucket", "buckets", multiple=True, help="Create this bucket. May be repeated.")
@click.option("--latency-ms", type=click.FloatRange(0), default=0.0, help="Add to each response.")
@click.option(
    "--fault-rate", type=click.FloatRange(0, 1), default=0.0, help="Fail this share of requests at random."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random faults.")
@click.option("--one-update-a-second", is_flag=True, help="Answer faster updates of one object with 429.")
def gcs_server_command(
    port: int,
    folder: Path | None,
    buckets: tuple[str, ...],
    latency_ms: float,
    fault_rate: float,
    seed: int,
    one_update_a_second: bool,
) -> None:
    """Serve Google Cloud Storage on this machine only, without credentials, until SIGINT or SIGTERM.

    Point clients at it with STORAGE_EMULATOR_HOST, which is printed first.
    """
    from dstl_dagster.testing.gcs_server import FaultKind, GCSServer, ServerFault
    from dstl_dagster.testing.gcs_server.faults import RandomFaults

    server = GCSServer(folder, port=port, one_update_a_second=one_update_a_second)
    for bucket in buckets:
        server.create_bucket(bucket)
    if latency_ms:
        server.faults.add(ServerFault(FaultKind.LATENCY, seconds=latency_ms / 1000, times=None))
    if fault_rate:
        server.faults.set_random(RandomFaults(seed, fault_rate))
    # A service manager and `docker stop` end it like this.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        click.echo(f"STORAGE_EMULATOR_HOST={server.url}")
        server.serve_forever()
    except KeyboardInterrupt:
        click.echo("stopped")
    finally:
        server.stop()
