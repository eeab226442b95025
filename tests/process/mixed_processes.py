"""Processes that fork, freeze and die at any request, on one job in one local store, at random.

    python tests/process/mixed_processes.py [--runs N] [--first SEED] [--beside COMMIT]

One seed is one world of four processes that all want to make the same checkpoints, and take over from each
other. Before a request chosen by the seed a process stops (SIGSTOP) until others have gone on, or dies
(SIGKILL); some fork, without exec, a child that works with the inherited coordinator. With a commit, half of
the processes run the package as it was then, from a wheel built of it.

Owns the processes, and what must be true in the end: each batch is in one checkpoint, once and in order, rows
and files are theirs, nothing is damaged, and nothing else is left. Exit status 1: it is not so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pyarrow as pa

from dstl_dagster.checkpoint import CheckpointCoordinator, FileReport
from dstl_dagster.errors import DstlError
from dstl_dagster.keyed import KeyedState, write_rows
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import LocalObjectStore, ObjectStore
from dstl_dagster.storage.base import ANY
from dstl_dagster.testing.fault_store import FaultStore

JOB, OPERATOR = "mixed", "totals"
BATCHES, PROCESSES, KEYS = 4, 4, 16
SCHEMA = StateSchema.of(pa.schema({"key": pa.int64(), "total": pa.int64()}), ["key"], 8)
FORGE = "--forge"
ROOT = Path(__file__).parents[2]
POLL_SECONDS = 0.005
_PATIENCE_SECONDS = 120.0
_MOST_REQUESTS = 160


def totals(batch: int) -> dict[int, int]:
    """Rows of a batch: others write the same keys."""
    return {key: 100 * batch + key for key in range(KEYS) if key % (batch % 3 + 2) == 0}


def content(batch: int) -> bytes:
    return f"batch {batch}\n".encode() * 500


def coordinator_of(store: ObjectStore, owner: str | None = None) -> CheckpointCoordinator:
    options = CheckpointOptions(num_retained=2, reader_grace=timedelta(0), commit_threads=1)
    return CheckpointCoordinator(JOB, store, options, owner=owner)


def make(batch: int, coordinator: CheckpointCoordinator, *, take_over: uuid.UUID | bool) -> None:
    """One checkpoint, unless there is one."""
    attempt = coordinator.trigger(take_over, idempotency_key=f"batch {batch}")
    rows = totals(batch)
    table = pa.table({"key": list(rows), "total": list(rows.values())}, SCHEMA.columns)
    report = write_rows(table, attempt, coordinator.store, operator=OPERATOR, schema=SCHEMA)
    writer = GSRecoverableWriter(coordinator.store, attempt=attempt.attempt)
    stream = writer.open(coordinator.store.uri_of(f"out/{batch}"))
    for half in (content(batch)[:700], content(batch)[700:]):
        stream.write(half)
        stream.sync()
    committer = stream.close_for_commit()
    file = FileReport(committer.recoverable, tuple(committer.components), format="text")
    coordinator.record(attempt, [report], [file], {"source": batch})
    coordinator.confirm(attempt)
    coordinator.compose_commit()
    coordinator.clean_up()


def work(coordinator: CheckpointCoordinator, chance: random.Random, *, forks: bool) -> None:
    """See every batch through, in order, whoever makes it."""
    for batch in range(BATCHES):
        if forks and chance.random() < 0.4:
            _fork(lambda: work(coordinator, random.Random(chance.random()), forks=False))
        end = time.monotonic() + _PATIENCE_SECONDS
        patience_seconds = chance.uniform(0.02, 0.1)
        while True:
            assert time.monotonic() < end, f"batch {batch} does not come to an end"
            try:
                if coordinator.applied(f"batch {batch}") is not None:
                    coordinator.compose_commit()
                    break
                make(batch, coordinator, take_over=_dead_rival(coordinator, patience_seconds))
            except DstlError as error:
                # A rival's decision, or a store that is held up: look again. Anything else is a fault.
                if error.kind not in REASONS:
                    raise
                patience_seconds *= 2  # so that they do not end each other's attempts for ever


def _dead_rival(coordinator: CheckpointCoordinator, patience_seconds: float) -> uuid.UUID | bool:
    """The open attempt, if it stays open for so long; else False."""
    opened = coordinator.timeline.tail().open_attempt
    end = time.monotonic() + patience_seconds
    while opened is not None and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
        now = coordinator.timeline.tail().open_attempt
        if now is None or now.attempt != opened.attempt:
            return False
    return False if opened is None else opened.attempt


REASONS = {
    *("attempt_open", "already_applied", "moved", "fenced", "already_completed", "unavailable"),
    *("not_found", "conflict", "object_exists", "state_missing", "checkpoint_gone", "contention"),
}


def _fork(act: Callable[[], None]) -> None:
    if os.fork() == 0:
        _run(act)


def _run(act: Callable[[], None]) -> None:
    status = 1
    try:
        _note_process()
        act()
        status = 0
    except BaseException as error:
        _here[0].joinpath(f"failed-{os.getpid()}").write_text(repr(error))
    finally:
        os._exit(status)


_here: list[Path] = []


def _note_process() -> None:
    _here[0].joinpath("processes", str(os.getpid())).touch()


def _live(folder: str, seed: int) -> None:
    """One process: some die, some freeze once, some do both."""
    _here[:] = [Path(folder)]
    chance = random.Random(seed)
    harm = {chance.randrange(_MOST_REQUESTS): signal.SIGSTOP for _ in range(chance.randint(0, 2))}
    if chance.random() < 0.6:
        harm[chance.randrange(_MOST_REQUESTS)] = signal.SIGKILL
    seen = -1

    def before_request() -> None:
        nonlocal seen
        seen += 1
        if seen in harm:
            os.kill(os.getpid(), harm[seen])

    store = LocalObjectStore(Path(folder) / "store", durable=False)
    coordinator = coordinator_of(FaultStore(store, before_request=before_request))
    _run(lambda: work(coordinator, chance, forks=chance.random() < 0.5))


def _forge() -> None:
    """Forks a process for each line `[folder, seed]`, and answers with its id."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        folder, seed = json.loads(line)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _live(folder, seed)
        print(child, flush=True)


@contextmanager
def forges(*packages: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """A process that forks others, for this checkout and for each folder with another version."""
    started = []
    paths = [os.pathsep.join(each for each in sys.path if each), *map(str, packages)]
    for path in paths:
        environment = {**os.environ, "PYTHONPATH": path}
        started.append(
            subprocess.Popen(
                # `-P`: the package of this checkout is not to be found beside this file.
                [sys.executable, "-P", __file__, FORGE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
                start_new_session=True,
            )
        )
    try:
        yield started
    finally:
        for forge in started:
            os.killpg(forge.pid, signal.SIGKILL)  # and whatever it forked that is still there, frozen perhaps
            forge.communicate(timeout=_PATIENCE_SECONDS)


def run(seed: int, folder: Path, started: list[subprocess.Popen[str]]) -> list[str]:
    """One world; what is wrong in the end."""
    chance = random.Random(seed)
    (folder / "processes").mkdir(parents=True)
    for number in range(PROCESSES):
        forge = started[number % len(started)]
        assert forge.stdin is not None
        assert forge.stdout is not None
        forge.stdin.write(json.dumps([str(folder), chance.randrange(2**32)]) + "\n")
        forge.stdin.flush()
        (folder / "processes" / forge.stdout.readline().strip()).touch()
    try:
        _until_they_end(folder, chance)
    finally:
        for each in (folder / "processes").iterdir():
            if _state(int(each.name)) is not None:
                os.kill(int(each.name), signal.SIGKILL)
    told = [f"{path.name}: {path.read_text()}" for path in folder.glob("failed-*")]
    store = LocalObjectStore(folder / "store", durable=False)
    work(coordinator_of(store), chance, forks=False)
    return told + _faults(store, folder)


def _until_they_end(folder: Path, chance: random.Random) -> None:
    """Let the frozen ones go on at some time, at the latest when nobody else is left."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        states = {int(each.name): _state(int(each.name)) for each in (folder / "processes").iterdir()}
        alive = {pid: state for pid, state in states.items() if state is not None}
        if not alive:
            return
        assert time.monotonic() < deadline, f"processes do not come to an end: {alive}"
        all_frozen = set(alive.values()) == {"T"}
        for pid, state in alive.items():
            if state == "T" and (all_frozen or chance.random() < 0.02):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        time.sleep(POLL_SECONDS)


def _state(pid: int) -> str | None:
    """The letter of a living process' state; `None`: it has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None
    return None if state in ("Z", "X") else state


def _faults(store: LocalObjectStore, folder: Path) -> list[str]:
    coordinator = coordinator_of(store)
    # What a process that died while it deleted left, and what a zombie uploaded after that.
    coordinator.clean_up(num_retained=1)
    store.put("next-write", b"", precondition=ANY)  # the store clears its own temporary files then
    records = list(coordinator.timeline.records())
    keys = [each.idempotency_key for each in records if each.kind == "completed"]
    wrong = []
    if keys != [f"batch {batch}" for batch in range(BATCHES)]:
        wrong.append(f"batches {keys}")
    latest = coordinator.latest()
    assert latest is not None
    state = KeyedState.of(store, latest.manifest, OPERATOR)
    assert state is not None
    rows = {row["key"]: row["total"] for table in state.tables() for row in table.to_pylist()}
    if rows != {key: total for batch in range(BATCHES) for key, total in totals(batch).items()}:
        wrong.append(f"rows {rows}")
    files = {path.name: path.read_bytes() for path in (folder / "store" / "out").iterdir()}
    if files != {str(batch): content(batch) for batch in range(BATCHES)}:
        wrong.append(f"files {sorted(files)}, or their bytes")
    complete = {str(each.attempt) for each in records if each.kind == "completed"}
    names = [stat.name for stat in store.list(f"dstl/{JOB}/attempts/")]
    left = [name for name in names if name.split("/")[3] not in complete]
    left += [stat.name for stat in store.list(".inprogress/")]
    left += [path.name for path in (folder / "store" / ".dstl-store" / "temporary").iterdir()]
    found = coordinator.verify()
    wrong += [f"left behind {left}"] if left else []
    return wrong + ([] if found.ok else [f"damaged {found.problems}"])


def oldest() -> str:
    """The oldest commit whose package has the public names that this program uses."""
    command = ["git", "log", "-SKeyedState", "--format=%H", "--", "dstl_dagster/keyed/__init__.py"]
    found = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return found.stdout.split()[-1]


def built(commit: str, folder: Path) -> Path:
    """The package as it was at a commit, from a wheel: a folder to import it from."""
    source, wheels, package = folder / "source", folder / "wheels", folder / "package"
    source.mkdir()
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", str(source)], input=packed.stdout, check=True)
    code = f"import hatchling.build as backend; backend.build_wheel({str(wheels)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = wheels.iterdir()
    with zipfile.ZipFile(wheel) as zipped:
        zipped.extractall(package)
    return package


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    beside = "half of the processes run this version, the oldest by default"
    parser.add_argument("--beside", metavar="COMMIT", nargs="?", const="", help=beside)
    parser.add_argument(FORGE, dest="forge", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.forge:
        _forge()
        return
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch:
        older = Path(scratch) / "older"
        older.mkdir()
        packages = [] if given.beside is None else [built(given.beside or oldest(), older)]
        with forges(*packages) as started:
            for seed in range(given.first, given.first + given.runs):
                for fault in run(seed, Path(scratch) / str(seed), started):
                    wrong += 1
                    print(f"seed {seed}: {fault}", flush=True)
    print(f"{given.runs} worlds, {wrong} faults")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
