"""The classes, the kinds, and the page about them: what programs rely on, and what may only grow."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from dstl_dagster import errors
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import ConflictError, DstlError, ErrorKind
from dstl_dagster.storage import MemoryObjectStore

PAGE = Path(__file__).parents[3] / "docs" / "errors.md"
TREE = {
    "DstlError": "Exception",
    "InvalidInputError": "DstlError ValueError",
    "NotFoundError": "DstlError OSError",
    "ConflictError": "DstlError OSError",
    "FencedError": "ConflictError",
    "ClosedError": "DstlError ValueError OSError",
    "UnavailableError": "DstlError OSError",
    "UploadTimeoutError": "UnavailableError TimeoutError",
    "FormatError": "DstlError OSError",
    "InternalError": "DstlError",
}
CLASSES = [getattr(errors, name) for name in TREE]
KINDS = [
    "error",
    "invalid_input",
    "not_found",
    "conflict",
    "fenced",
    "closed",
    "unavailable",
    "format",
    "internal",
    "not_installed",
    "attempt_open",
    "already_applied",
    "already_completed",
    "moved",
    "unfinished",
    "abandoned",
    "no_checkpoint",
    "checkpoint_gone",
    "contention",
    "job_gone",
    "history_hole",
    "newer_version",
    "unclaimed",
    "other_source",
    "not_written",
    "other_report",
    "foreign_object",
    "upload_failed",
    "timeout",
    "damaged",
    "no_state",
    "state_missing",
    "schema_change",
    "duplicate_key",
    "unsupported_type",
    "no_permission",
    "upload_lost",
    "other_query",
    "out_of_order",
    "timeline_replaced",
]


def test_the_tree_of_classes() -> None:
    """A handler of a class today catches the same errors tomorrow."""
    found = {
        name: " ".join(base.__name__ for base in each.__bases__)
        for name in errors.__all__
        if isinstance(each := getattr(errors, name), type) and issubclass(each, Exception)
    }
    assert found == TREE


def test_kinds_are_counted() -> None:
    """A kind is a promise to handlers: one that comes or goes is decided here too."""
    assert sorted(kind.value for kind in ErrorKind) == sorted(KINDS)


def test_a_kind_is_named_as_it_is_spelled() -> None:
    """A kind's text gives away its member."""
    assert {kind.name: kind.value for kind in ErrorKind} == {kind.upper(): kind for kind in KINDS}


@pytest.mark.parametrize("error_class", CLASSES, ids=TREE)
@pytest.mark.parametrize("kind", [None, ErrorKind.CONTENTION, "of_a_later_release"])
def test_every_class_is_pickled(error_class: type[DstlError], kind: ErrorKind | None) -> None:
    """Spark and Dagster carry errors between processes: class, kind and message arrive."""
    error = error_class("what happened", kind)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is error_class
    assert (again.message, again.kind, str(again)) == ("what happened", error.kind, "what happened")


def test_a_pickled_error_needs_no_kind() -> None:
    """The kind travels as text, so that another process needs no class for it."""
    assert b"ErrorKind" not in pickle.dumps(ConflictError("what happened", ErrorKind.CONTENTION))


def test_a_kind_is_text() -> None:
    """It is plain text, so that JSON, logs and Dagster's metadata take it as it is."""
    error = ConflictError("what happened", ErrorKind.CONTENTION)
    assert type(error.kind) is str
    assert error.kind == "contention" == ErrorKind.CONTENTION
    assert f"{ErrorKind.CONTENTION}" == "contention"


def test_an_unknown_kind_is_kept() -> None:
    """A later release may send a kind that this one does not know."""
    unknown = ErrorKind("of_a_later_release")
    assert unknown == "of_a_later_release"
    assert unknown not in list(ErrorKind)
    assert ConflictError("what happened", unknown).kind == "of_a_later_release"
    assert pickle.loads(pickle.dumps(unknown)) == unknown


@pytest.mark.parametrize("error_class", CLASSES, ids=TREE)
def test_every_class_has_a_kind_of_its_own(error_class: type[DstlError]) -> None:
    """An error without an explicit kind has the one of its class, which no other class has."""
    error = error_class("what happened")
    assert error.kind in list(ErrorKind)
    assert [each for each in CLASSES if each.default_kind == error.kind] == [error_class]


def test_every_kind_is_documented(documented: dict[str, dict[str, set[str]]]) -> None:
    """Each by classes that exist, a cause and a remedy."""
    listed = [kind for kinds in documented.values() for kind in kinds]
    assert listed == [kind.value for kind in ErrorKind]
    named = {name for kinds in documented.values() for classes in kinds.values() for name in classes}
    assert named <= set(TREE)


def test_every_section_has_its_scenarios(documented: dict[str, dict[str, set[str]]]) -> None:
    """Each section of the kinds has a module here, which raises its kinds."""
    modules = {path.name for path in Path(__file__).parent.glob("test_*_kinds.py")}
    assert modules == {f"test_{title.lower().replace(' ', '_')}_kinds.py" for title in documented}


def test_the_example_of_the_page_runs() -> None:
    """The page's example skips a batch that is already applied, and ignores no other conflict."""
    page = PAGE.read_text(encoding="utf-8")
    example = compile(page.partition("```python\n")[2].partition("```")[0], "errors.md", "exec")
    coordinator = CheckpointCoordinator("orders", MemoryObjectStore())
    exec(example, names := {"coordinator": coordinator})
    with pytest.raises(ConflictError, match="is being made"):
        exec(example, {"coordinator": CheckpointCoordinator("orders", coordinator.store, owner="other")})
    coordinator.record(names["attempt"])
    coordinator.confirm(names["attempt"])
    coordinator.compose_commit()
    exec(example, {"coordinator": coordinator})
