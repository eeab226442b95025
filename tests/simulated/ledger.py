"""What a timeline's records add up to, folded a second time, from their bare JSON.

Owns the rules of `docs/checkpoints/how-it-works.md` as the simulation states them. Shares no code with the
protocol, so that a mistake there is not repeated here. Does not own the other objects (`oracle`).
"""

from __future__ import annotations

import json
import uuid
from functools import lru_cache
from typing import Any

Record = dict[str, Any]


@lru_cache(maxsize=20_000)
def document(payload: bytes) -> Record:
    """The JSON after the first line. Cached and shared: never modify it."""
    fields = json.loads(payload.partition(b"\n")[2])
    assert isinstance(fields, dict)
    return fields


class Ledger:
    """Records in order, and every rule that one of them broke (`broken`)."""

    def __init__(self, num_retained: int) -> None:
        self._num_retained = num_retained
        self.broken: list[str] = []
        self.slot = 0
        self.snapshot_slot = 0
        self.open: Record | None = None
        self.last: int | None = None
        self.seen: int | None = None  # by readers of a job that begins anew
        self.completed: dict[int, Record] = {}
        self.committed: dict[int, Record] = {}
        self.subsumed: dict[int, Record] = {}
        self.resolved: dict[int, list[Record]] = {}
        self.abandoned: set[int] = set()
        self.savepoints: dict[str, int] = {}
        self.pending: list[list[int]] = []
        self.dead: dict[str, Record] = {}  # attempts that never completed, by attempt
        self.requests: dict[str, int] = {}
        self._decisions: set[str] = set()

    def copy(self) -> Ledger:
        """An independent copy."""
        other = Ledger(self._num_retained)
        for name, value in vars(self).items():
            if name == "resolved":
                value = {key: list(each) for key, each in value.items()}
            elif isinstance(value, dict | list | set):
                value = value.copy()
            setattr(other, name, value)
        return other

    # -- questions

    @property
    def chain(self) -> list[int]:
        """From the first checkpoint to the last completed one, along the parents."""
        found: list[int] = []
        at = self.last
        while at is not None and len(found) <= len(self.completed):
            found.append(at)
            at = self.completed[at]["parent"] if at in self.completed else None
        return found[::-1]

    def chain_to(self, checkpoint_id: int) -> list[int]:
        """The ancestors of any checkpoint, and itself."""
        found: list[int] = []
        at: int | None = checkpoint_id
        while at is not None:
            found.append(at)
            at = self.completed[at]["parent"]
        return found[::-1]

    @property
    def chain_keys(self) -> list[str]:
        return [self.completed[each]["batch"]["key"] for each in self.chain]

    @property
    def kept(self) -> list[int]:
        """Not subsumed; includes abandoned ones."""
        return [each for each in self.completed if each not in self.subsumed]

    @property
    def retained(self) -> list[int]:
        return [each for each in self.kept if each not in self.abandoned]

    def blocked(self, checkpoint_id: int) -> list[Record]:
        return list(self.committed.get(checkpoint_id, {}).get("blocked", []))

    def unfinished(self, checkpoint_id: int) -> list[Record]:
        """Resolutions of blocked files that no later `committed` has carried out."""
        if checkpoint_id not in self.committed:
            return []
        since = self.committed[checkpoint_id]["slot"]
        return [each for each in self.resolved.get(checkpoint_id, []) if each["slot"] > since]

    def resolution_of(self, checkpoint_id: int, name: str) -> Record | None:
        """The newest resolution of a file."""
        found = [each for each in self.resolved.get(checkpoint_id, []) if each["name"] == name]
        return found[-1] if found else None

    def owner_of_half(self, half: int) -> tuple[str, int | None] | None:
        """The state (`open`, `dead`, `completed`) of the attempt with these upper 64 bits."""
        if self.open is not None and half_of(self.open["attempt"]) == half:
            return "open", None
        for checkpoint_id, record in self.completed.items():
            if half_of(record["attempt"]) == half:
                return "completed", checkpoint_id
        return ("dead", None) if any(half_of(each) == half for each in self.dead) else None

    # -- the records

    def add(self, record: Record) -> None:
        """Apply one more record, and note every rule that it breaks."""
        if record["slot"] != self.slot + 1:
            self._break(record, f"follows slot {self.slot}")
        if record["decision_id"] in self._decisions:
            self._break(record, "has the decision id of an earlier record")
        self._decisions.add(record["decision_id"])
        getattr(self, f"_{record['kind']}")(record)
        if record["kind"] in ("savepoint", "released", "resolved", "restored"):
            self.requests[record["decision_id"]] = record["slot"]
        self.slot = record["slot"]

    def _break(self, record: Record, why: str) -> None:
        self.broken.append(f"slot {record['slot']} ({record['kind']}): {why}")

    def _expect(self, record: Record, holds: bool, why: str) -> None:
        if not holds:
            self._break(record, why)

    def _opened(self, record: Record) -> None:
        self._expect(record, self.open is None, "another attempt is open")
        highest = max(self.completed, default=0)
        self._expect(record, record["checkpoint_id"] == highest + 1, f"the highest id is {highest}")
        self._expect(record, record["parent"] == self.last, f"the last checkpoint is {self.last}")
        self._expect(record, self.last is None or self.last in self.committed, "the last is not committed")
        self._expect(record, record["batch"]["key"] not in self.chain_keys, "the batch is applied")
        waiting = [each for each in self.retained if self.unfinished(each)]
        self._expect(record, not waiting, f"resolutions of {waiting} are unfinished")
        self.open = record
        self.pending = []

    def _completed(self, record: Record) -> None:
        mine = self.open is not None and all(
            self.open[field] == record[field] for field in ("attempt", "checkpoint_id", "parent", "batch")
        )
        self._expect(record, mine, "the attempt is not the open one")
        self._expect(
            record,
            record["checkpoint_id"] > max(self.completed, default=0),
            "the id is not above all earlier ones",
        )
        self._expect(record, record["parent"] == self.last, f"the last checkpoint is {self.last}")
        self._expect(record, record["batch"]["key"] not in self.chain_keys, "the batch is applied twice")
        self.open = None
        self.completed[record["checkpoint_id"]] = record
        self.last = record["checkpoint_id"]
        self.seen = None

    def _committed(self, record: Record) -> None:
        each = record["checkpoint_id"]
        self._expect(record, each in self.completed, "was never completed")
        self._expect(record, each not in self.abandoned, "was abandoned")
        self._expect(record, each not in self.subsumed, "is subsumed")
        self._expect(
            record, each not in self.committed or bool(self.unfinished(each)), "nothing is left to commit"
        )
        self.committed[each] = record

    def _dead(self, record: Record) -> None:
        mine = self.open is not None and self.open["attempt"] == record["attempt"]
        self._expect(record, mine, "the attempt is not the open one")
        if mine:
            self.open = None
        self.dead[record["attempt"]] = record

    _aborted = _dead
    _fenced = _dead

    def _subsumed(self, record: Record) -> None:
        retained = sorted(self.retained)[: -self._num_retained]
        for each in record["checkpoint_ids"]:
            self._expect(record, each in self.kept, f"{each} is not kept")
            self._expect(record, each not in self.savepoints.values(), f"{each} is kept by a savepoint")
            self._expect(record, each != self.seen, f"{each} is what readers see")
            if each in self.abandoned:
                self._expect(record, not self.pending, f"{each} is not retracted yet")
                continue
            self._expect(record, each in self.committed, f"{each} is not committed")
            self._expect(record, not self.blocked(each), f"{each} has a blocked file")
            self._expect(record, not self.unfinished(each), f"a resolution of {each} is unfinished")
            self._expect(record, each in retained, f"{each} is among the last {self._num_retained}")
        for each in record["checkpoint_ids"]:
            self.subsumed[each] = record

    def _savepoint(self, record: Record) -> None:
        self._expect(record, record["checkpoint_id"] in self.kept, "keeps a checkpoint that is subsumed")
        self._expect(record, record["name"] not in self.savepoints, "the name is taken")
        self.savepoints[record["name"]] = record["checkpoint_id"]

    def _released(self, record: Record) -> None:
        self._expect(record, record["name"] in self.savepoints, "there is no such savepoint")
        self.savepoints.pop(record["name"], None)

    def _resolved(self, record: Record) -> None:
        each = record["checkpoint_id"]
        found = [file for file in self.blocked(each) if file["name"] == record["name"]]
        self._expect(record, bool(found) and each in self.retained, "the file is not blocked")
        if found:
            same = found[0]["foreign_generation"] == record["foreign_generation"]
            self._expect(record, same, "names another foreign object")
        self.resolved.setdefault(each, []).append(record)

    def _restored(self, record: Record) -> None:
        each = record["checkpoint_id"]
        there = each in self.retained if each else bool(self.completed)
        self._expect(record, there, "restores to a checkpoint that is not retained")
        waiting = [one for one in self.retained if self.unfinished(one)]
        self._expect(record, not waiting, f"resolutions of {waiting} are unfinished")
        if self.open is not None:
            self.dead[self.open["attempt"]] = record
            self.open = None
        later = [one for one in self.completed if one > each]
        self.abandoned.update(later)
        self.seen = None if each else self.last or self.seen
        self.last = each or None
        if later:
            after = self.completed[each]["slot"] if each in self.completed else 0
            self.pending.append([each + 1, max(later), after, record["slot"]])

    def _snapshot(self, record: Record) -> None:
        view = record["view"]
        opened = view["open_attempt"]
        retractions = [[each[name] for name in _RETRACTION] for each in view["retractions"]]
        entries = {entry["completed"]["checkpoint_id"]: entry for entry in view["checkpoints"]}
        wanted: dict[str, tuple[Any, Any]] = {
            "open": (None if opened is None else opened["attempt"], self._open_attempt()),
            "last": (view["last_completed_id"], self.last),
            "seen": (view["replaced_id"], self.seen),
            "highest": (view["highest_id"], max(self.completed, default=0)),
            "savepoints": (view["savepoints"], self.savepoints),
            "retractions": (retractions, self.pending),
            "abandoned": (
                sorted(one for first, last in view["abandoned"] for one in range(first, last + 1)),
                sorted(self.abandoned),
            ),
            "kept": (sorted(each for each in entries if each not in self.subsumed), sorted(self.kept)),
            "entries": (
                {each: _slots(entry) for each, entry in entries.items()},
                {each: self._slots_of(each) for each in entries if each in self.completed},
            ),
        }
        for what, (said, true) in wanted.items():
            self._expect(record, said == true, f"says {what} {said}, and it is {true}")
        self.snapshot_slot = record["slot"]

    def _open_attempt(self) -> str | None:
        return None if self.open is None else str(self.open["attempt"])

    def _slots_of(self, each: int) -> list[Any]:
        records = (self.completed.get(each), self.committed.get(each), self.subsumed.get(each))
        return [
            *(None if one is None else one["slot"] for one in records),
            [resolution["slot"] for resolution in self.resolved.get(each, [])],
        ]


def _slots(entry: Record) -> list[Any]:
    records = (entry["completed"], entry["committed"], entry["subsumed"])
    return [
        *(None if one is None else one["slot"] for one in records),
        [resolution["slot"] for resolution in entry["resolved"]],
    ]


_RETRACTION = ("first_id", "last_id", "after_slot", "restored_slot")


@lru_cache(maxsize=20_000)
def half_of(attempt: str) -> int:
    """The upper 64 bits of an attempt's or a component's UUID."""
    return uuid.UUID(attempt).int >> 64
