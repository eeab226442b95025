"""The limit of local copies that no writer deletes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dstl_dagster.changelog import limit_local_copies


def _copies(folder: Path) -> None:
    for age, name in enumerate(("newest", "middle", "oldest")):
        (folder / name).write_bytes(b"x" * 10)
        os.utime(folder / name, (1_000 - age, 1_000 - age))


@pytest.mark.parametrize(
    ("max_bytes", "left"),
    [
        (30, ["middle", "newest", "oldest"]),
        (29, ["middle", "newest"]),
        (20, ["middle", "newest"]),
        (10, ["newest"]),
        (0, []),
    ],
)
def test_the_oldest_go_first(tmp_path: Path, max_bytes: int, left: list[str]) -> None:
    """As few as it takes; exactly the limit may stay."""
    _copies(tmp_path)
    limit_local_copies(tmp_path, max_bytes)
    assert sorted(each.name for each in tmp_path.iterdir()) == left


def test_a_copy_that_another_process_deletes_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the deletion, or before the look."""
    _copies(tmp_path)
    real = Path.iterdir

    def and_one_that_is_gone(folder: Path) -> list[Path]:
        return [*real(folder), folder / "gone"]

    monkeypatch.setattr(Path, "iterdir", and_one_that_is_gone)
    limit_local_copies(tmp_path, 10)
    assert [each.name for each in real(tmp_path)] == ["newest"]


def test_a_folder_that_cannot_be_listed_stops_no_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's, say: copies are a cache."""
    monkeypatch.setattr(Path, "iterdir", lambda _: (_ for _ in ()).throw(PermissionError(13, "denied")))
    limit_local_copies(tmp_path, 10)


def test_nothing_to_limit(tmp_path: Path) -> None:
    """No local recovery, or no copy yet: nothing is made."""
    limit_local_copies(None, 0)
    limit_local_copies(tmp_path / "none", 0)
    assert not (tmp_path / "none").exists()
