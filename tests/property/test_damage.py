"""Every kind of object of a job is damaged in every way, looked at by everything that reads, and put back.

A look gives what the job has, or an error of ours; afterwards the job is as it was, on this store and on one
opened anew, and goes on. `tests/unit/storage/test_put_back.py` has the same of one object, in CI.

    python -m pytest -m soak tests/property/test_damage.py
"""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import dstl_dagster as dstl
from dstl_dagster.checkpoint import CheckpointCoordinator, FileReport
from dstl_dagster.cli import main
from dstl_dagster.errors import DstlError
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.storage import LocalObjectStore
from tests.unit.storage.test_put_back import emptied, removed, replaced

pytestmark = pytest.mark.soak

OPTIONS = {
    "dstl.checkpoint.snapshot-interval": "8",
    "execution.checkpointing.num-retained": "3",
    "dstl.checkpoint.reader-grace": "0 s",
}
BATCHES = 12
STATES = {n: [(key, n) for key in range(3)] for n in range(BATCHES + 1)}
COMMANDS = (
    "list",
    "show",
    "timeline",
    "audit",
    "verify",
    "history -k id=1",
    "schema",
    "gc --dry-run --keep 1",
)
KINDS = {
    "the newest record": "dstl/job/timeline/*",
    "a manifest": "dstl/job/manifests/*",
    "a changelog file": "dstl/job/attempts/*/changelog/job/dstl/*",
    "a list of runs": "dstl/job/attempts/*/runs",
    "the hint": "dstl/job/hint",
    "the archive of a key": "dstl/job/archive/keys/*/*",
    "a file": "out/*.txt",
    "a component": ".inprogress/*/*/*/*",
    "what the store notes of an object": ".dstl-store/records/*/*.json",
}


def flipped(path: Path) -> None:
    octets = bytearray(path.read_bytes())
    octets[len(octets) // 2] ^= 1
    path.write_bytes(octets)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of each kind of object; its last checkpoint has files that are not yet published."""
    root = tmp_path_factory.mktemp("whole") / "store"
    for number in range(1, BATCHES + 1):
        batch(root, number)
    coordinator = CheckpointCoordinator("job", LocalObjectStore(root), OPTIONS)
    coordinator.clean_up()
    for number in (BATCHES + 1, BATCHES + 2):
        attempt = coordinator.trigger()
        stream = GSRecoverableWriter(coordinator.store, attempt=attempt.attempt).open(
            f"{root.as_uri()}/out/{number}.txt"
        )
        for part in (b"one", b"two"):
            stream.write(part)
            stream.sync()
        committer = stream.close_for_commit()
        coordinator.record(attempt, [], [FileReport(committer.recoverable, tuple(committer.components))])
        coordinator.confirm(attempt)
        if number == BATCHES + 1:
            coordinator.compose_commit()
    return root


def batch(root: Path, number: int) -> None:
    rows = pa.table({"id": range(3), "value": [number] * 3})
    with dstl.open_batch(root.as_uri(), "job", idempotency_key=str(number), options=OPTIONS) as work:
        work.write_state(rows, operator="op", keys=["id"], max_parallelism=4)


def state(root: Path) -> list[tuple[int, int]]:
    read = dstl.read_state(root.as_uri(), "job", "op").to_arrow_batch_reader().read_all()
    return sorted(zip(*read.to_pydict().values(), strict=True))


def by_this_store(root: Path, store: LocalObjectStore) -> None:
    coordinator = CheckpointCoordinator("job", store, OPTIONS)
    for look in (
        coordinator.list,
        coordinator.audit,
        lambda: coordinator.verify(coordinator.latest().checkpoint_id),  # type: ignore[union-attr]
        lambda: coordinator.clean_up(dry_run=True, num_retained=1),
        lambda: [store.get(each.name) for each in store.list()],
    ):
        with contextlib.suppress(DstlError):
            look()


def by_readers(root: Path, _: LocalObjectStore) -> None:
    with contextlib.suppress(DstlError):
        assert state(root) in STATES.values()


def by_commands(root: Path, _: LocalObjectStore) -> None:
    for command in COMMANDS:
        done = CliRunner().invoke(
            main, ["checkpoints", *command.split()], env={"DSTL_STORE": root.as_uri(), "DSTL_JOB": "job"}
        )
        assert isinstance(done.exception, SystemExit | None), (command, done.exception)


def by_another_process(root: Path, _: LocalObjectStore) -> None:
    program = "import sys; from dstl_dagster.cli import main; main()"
    command = [
        sys.executable,
        "-c",
        program,
        "checkpoints",
        "verify",
        "--store",
        root.as_uri(),
        "--job",
        "job",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("damage", [flipped, cut, emptied, replaced, removed])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_put_back_is_the_job_again(
    kind: str, damage: Callable[[Path], None], whole: Path, tmp_path: Path
) -> None:
    chance = random.Random(f"{kind} {damage.__name__}")
    paths = [path for path in sorted(whole.glob(KINDS[kind])) if path.is_file()]
    chosen = paths[-1] if kind == "the newest record" else chance.choice(paths)
    root = tmp_path / "store"
    shutil.copytree(whole, root)
    store, path = LocalObjectStore(root), root / chosen.relative_to(whole)
    before = listed(store)
    looks = [by_this_store, by_readers, by_commands, by_another_process]
    for back in (Path.write_bytes, moved_back):
        chance.shuffle(looks)
        damage(path)
        for look in looks:
            look(root, store)
        back(path, chosen.read_bytes())
        for each in (store, LocalObjectStore(root)):
            assert listed(each) == before
            coordinator = CheckpointCoordinator("job", each, OPTIONS)
            assert coordinator.verify(BATCHES + 2).ok
            assert state(root) == STATES[BATCHES]
    batch(root, BATCHES + 3)  # which publishes the files of the checkpoint before
    assert state(root) == [(key, BATCHES + 3) for key in range(3)]
    assert (root / "out" / f"{BATCHES + 2}.txt").read_bytes() == b"onetwo"


def moved_back(path: Path, octets: bytes) -> None:
    aside = path.with_name("aside")
    aside.write_bytes(octets)
    aside.replace(path)


def listed(store: LocalObjectStore) -> dict[str, bytes]:
    return {stat.name: store.get(stat.name, generation=stat.generation) for stat in store.list()}
