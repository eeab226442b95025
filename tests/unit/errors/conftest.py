"""What the scenarios of the kinds share: a job in memory, and the check of a kind against what it documents.

Each section of `ErrorKind` has a module here, `test_<section>_kinds.py`, whose scenarios are its kinds, no
more and no fewer.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dstl_dagster.checkpoint import Attempt, Checkpoint, CheckpointCoordinator, FileReport, OperatorReport
from dstl_dagster.errors import DstlError, ErrorKind
from dstl_dagster.keyed.write.writer import write_rows
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import ANY, MemoryObjectStore, ObjectStore

SOURCE = Path(__file__).parents[3] / "dstl_dagster" / "errors.py"
SCHEMA = StateSchema.of(pa.schema({"tail": pa.string(), "flights": pa.int64()}), ["tail"], 16)


@dataclass
class Case:
    """A job `orders` in memory, and what a scenario breaks it with."""

    folder: Path
    patch: pytest.MonkeyPatch
    store: ObjectStore = field(default_factory=lambda: MemoryObjectStore("b"))

    def coordinator(self, owner: str = "test", **options: object) -> CheckpointCoordinator:
        return CheckpointCoordinator("orders", self.store, CheckpointOptions(**options), owner=owner)  # type: ignore[arg-type]

    def rows(
        self, attempt: Attempt, *rows: Mapping[str, Any], schema: StateSchema = SCHEMA, **how: Any
    ) -> OperatorReport:
        """Changed rows of the operator `totals`, durably, and the report of them."""
        table = pa.Table.from_pylist(list(rows or [{"tail": "N1", "flights": 1}]), schema=schema.columns)
        return write_rows(table, attempt, self.store, operator="totals", schema=schema, **how)

    def file(self, attempt: Attempt, name: str = "out") -> FileReport:
        """A file of one component, and the report of it."""
        stream = GSRecoverableWriter(self.store, attempt=attempt.attempt).open(self.store.uri_of(name))
        stream.write(b"line\n")
        committer = stream.close_for_commit()
        return FileReport(committer.recoverable, tuple(committer.components), rows=1, format="text")

    def confirmed(
        self,
        attempt: Attempt,
        operators: Sequence[OperatorReport] = (),
        files: Sequence[FileReport] = (),
    ) -> Checkpoint:
        """The attempt's checkpoint, completed; its files are not published."""
        coordinator = self.coordinator()
        coordinator.record(attempt, operators, files)
        return coordinator.confirm(attempt)

    def checkpoint(self, key: str | None = None, **how: Any) -> Checkpoint:
        """One whole checkpoint with state."""
        coordinator = self.coordinator()
        attempt = coordinator.trigger(idempotency_key=key)
        self.confirmed(attempt, [self.rows(attempt, **how)])
        coordinator.compose_commit()
        return coordinator.get(attempt.checkpoint_id)

    def blocked(self) -> Checkpoint:
        """A checkpoint whose file `out` a foreign object blocks."""
        coordinator = self.coordinator()
        attempt = coordinator.trigger()
        self.confirmed(attempt, files=[self.file(attempt)])
        self.replace("out", b"foreign")
        (checkpoint,) = coordinator.compose_commit()
        return checkpoint

    def replace(self, name: str, payload: bytes) -> None:
        """Overwrite whatever is there, as a foreign writer would."""
        self.store.put(name, payload, precondition=ANY)

    def delete(self, *names: str) -> None:
        """Delete objects, as a foreign writer would."""
        for name in names:
            self.store.delete(name, precondition=ANY)

    def names(self, part: str) -> list[str]:
        """The objects with this in their name."""
        return [stat.name for stat in self.store.list() if part in stat.name]


Scenario = Callable[[Case], object]


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(tmp_path, monkeypatch)


def _sections() -> dict[str, dict[str, set[str]]]:
    """By section, the classes of each kind, as its docstring has them."""
    sections: dict[str, dict[str, set[str]]] = {}
    for section in SOURCE.read_text(encoding="utf-8").split("\n    # -- ")[1:]:
        title, _, body = section.partition("\n")
        rows = re.findall(
            r'^    \w+ = "(\w+)"\n    """((?:`\w+`(?:, )?)+): \S.*\. [A-Z].*\."""$', body, re.MULTILINE
        )
        sections[title] = {kind: set(re.findall(r"\w+", classes)) for kind, classes in rows}
    return sections


@pytest.fixture(scope="session")
def documented() -> dict[str, dict[str, set[str]]]:
    """The docstrings of the kinds: section, kind, names of its classes."""
    return _sections()


@pytest.fixture
def check_kind(case: Case, documented: dict[str, dict[str, set[str]]]) -> Callable[[str, Scenario], None]:
    """Runs a scenario: it raises this kind, as a documented class, and the error can be pickled."""

    def check(kind: str, scenario: Scenario) -> None:
        with pytest.raises(DstlError) as raised:
            scenario(case)
        error = raised.value
        classes = next(kinds[kind] for kinds in documented.values() if kind in kinds)
        assert error.kind == ErrorKind(kind), repr(error)
        assert classes & {each.__name__ for each in type(error).__mro__[:-1]}, repr(error)
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.kind, again.message) == (type(error), error.kind, error.message)

    return check
