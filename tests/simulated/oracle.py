"""What must be true of the objects, at every change and at the end. Shares no code with the protocol.

Owns the checks at each change (`Watch`) and at the end of a run (`judge`). Does not own the rules between
records (`ledger`) or what a batch contains (`batches`). Object names and fields are deliberately spelled a
second time here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from dstl_dagster.storage import ObjectStat
from tests.simulated.batches import (
    FILES,
    OPERATORS,
    file_bytes,
    file_name,
    number_of,
    state_of,
)
from tests.simulated.ledger import Ledger, document, half_of
from tests.simulated.manifests import needed_by, state_in
from tests.simulated.world import BUCKET, World

JOB = "sim"
ROOT = f"dstl/{JOB}/"
FOREIGN = b"somebody else's"
"""The first bytes of every foreign object."""


def read_ledger(world: World, num_retained: int) -> Ledger:
    """The ledger of the current timeline."""
    ledger = Ledger(num_retained)
    for name in world.names(f"{ROOT}timeline/"):
        payload = world.payload(name)
        assert payload is not None
        ledger.add(document(payload))
    return ledger


class Watch:
    """Checks each change of the storage as it happens; violations are added to `broken`."""

    def __init__(self, world: World, num_retained: int, grace: timedelta) -> None:
        self._world = world
        self._num_retained = num_retained
        self._grace = grace
        self._ledger: Ledger | None = None
        self.broken: list[str] = []
        self.tell: Callable[[str], None] = lambda _line: None
        world.watcher = self

    def go_to(self, ledger: Ledger) -> None:
        """The world was reset to the moment of this ledger; nothing is broken so far."""
        self._ledger = ledger.copy()
        self.broken.clear()

    @property
    def ledger(self) -> Ledger:
        """The ledger of the records so far."""
        if self._ledger is None:
            self._ledger = read_ledger(self._world, self._num_retained)
            self.broken += self._ledger.broken
        return self._ledger

    def created(self, bucket_name: str, name: str) -> None:
        if name.startswith("out/"):
            taken = {self._world.payload(copy) for copy in self._world.names("taken/")}
            if self._world.payload(name) in taken:
                self.broken.append(f"{name} was taken by a consumer, and is back")
        if bucket_name != BUCKET or not name.startswith(f"{ROOT}timeline/"):
            return
        payload = self._world.payload(name)
        assert payload is not None
        record = document(payload)
        self.tell(f"slot {record['slot']} is {record['kind']}")
        if self._ledger is None or self._ledger.slot + 1 != record["slot"]:
            self._ledger = None
            ledger = self.ledger
        else:
            ledger = self._ledger
            seen = len(ledger.broken)
            ledger.add(record)
            self.broken += ledger.broken[seen:]
        check = getattr(self, f"_at_{record['kind']}", None)
        if check is not None:
            self.broken += [f"slot {record['slot']} ({record['kind']}): {why}" for why in check(record)]
        if ledger.slot != record["slot"]:
            self.broken.append(f"slot {record['slot']} follows a gap")

    def _at_opened(self, _record: dict[str, Any]) -> Iterator[str]:
        for name in leftovers_of_abandoned(self._world, self.ledger):
            yield f"{name} of an abandoned checkpoint is still there"

    def _at_completed(self, record: dict[str, Any]) -> Iterator[str]:
        if self._world.payload(record["manifest"]) is None:
            yield "its manifest is missing"

    def _at_committed(self, record: dict[str, Any]) -> Iterator[str]:
        completed = self.ledger.completed[record["checkpoint_id"]]
        made = components_in(self._world, completed["manifest"])
        half = half_of(completed["attempt"])
        for name in record["published"]:
            for source, generation in _temporary(self._world, f"/{name}/", half).items():
                # Another generation of a component is a late twin of its upload, not a source.
                if made.get(source, generation) == generation:
                    yield f"{name} is published, and its source {source} is still there"

    def _at_snapshot(self, record: dict[str, Any]) -> Iterator[str]:
        before = read_ledger(self._world, self._num_retained)
        yield from missing_in_archive(self._world, before, record["slot"])

    def removed(self, bucket_name: str, name: str, stat: ObjectStat) -> None:
        if ".inprogress/" in name:
            self._source_removed(name)
        elif bucket_name != BUCKET:
            return
        elif name.startswith((f"{ROOT}timeline/", f"{ROOT}archive/")):
            self.broken.append(f"{name} was deleted: nothing there ever may be")
        elif name.startswith((f"{ROOT}manifests/", f"{ROOT}attempts/")):
            self._document_removed(name)
        elif name.startswith("out/"):
            self._final_removed(name, stat)

    def _document_removed(self, name: str) -> None:
        ledger = self.ledger
        if ledger.open is not None and ledger.open["attempt"] in name:
            self.broken.append(f"{name} was deleted while its attempt is open")
        for each in ledger.completed:
            subsumed = ledger.subsumed.get(each)
            if subsumed is not None and self._grace_is_over(subsumed["slot"]):
                continue
            manifest = ledger.completed[each]["manifest"]
            if name == manifest or name in set(needed_by(self._world, manifest)):
                self.broken.append(f"{name} was deleted while checkpoint {each} needs it")

    def _grace_is_over(self, slot: int) -> bool:
        (name,) = self._world.names(f"{ROOT}timeline/{slot:020d}")
        recorded = self._world.store.stat(name)
        assert recorded is not None
        return self._world.clock.now() - recorded.updated >= self._grace

    def _source_removed(self, name: str) -> None:
        """An attempt's bytes may go only if it is dead, if they have moved up, or if nothing needs them."""
        ledger = self.ledger
        state = ledger.owner_of_half(half_of(name.rpartition("/")[2]))
        if state is None or state[0] == "dead":
            return
        if state[1] is None:
            self.broken.append(f"{name} was deleted while its attempt is open")
            return
        each = state[1]
        if each in ledger.abandoned or each in ledger.subsumed:
            return
        final = name.partition(".inprogress/")[2].partition("/")[2].rpartition("/")[0]
        resolved = ledger.resolution_of(each, final)
        if resolved is not None and resolved["resolution"] == "keep":
            return
        if any(file["name"] == final for file in ledger.blocked(each)) and resolved is None:
            self.broken.append(f"{name} was deleted while its file is blocked")
        elif final in ledger.committed.get(each, {}).get("published", []):
            return
        else:
            self._expect_further_up(name, final, each)

    def _expect_further_up(self, name: str, final: str, each: int) -> None:
        attempt = self.ledger.completed[each]["attempt"]
        made = self._world.payload(final)
        half = half_of(attempt)
        if (made is None or not made.startswith(attempt.encode())) and not _temporary(
            self._world, f"/{final}/", half
        ):
            self.broken.append(f"{name} was deleted, and nothing of {final} is left")

    def _final_removed(self, name: str, stat: ObjectStat) -> None:
        ledger = self.ledger
        if stat.metadata.get("whose") == FOREIGN.decode():
            resolved = [one for each in ledger.resolved.values() for one in each if one["name"] == name]
            replaced = any(
                one["resolution"] == "replace" and one["foreign_generation"] == stat.generation
                for one in resolved
            )
            if not replaced:
                self.broken.append(f"foreign {name} was deleted without a resolution")


def components_in(world: World, manifest_name: str) -> dict[str, int]:
    """Names and generations of the temporary objects that a manifest's files are composed of."""
    manifest = world.payload(manifest_name)
    files = [] if manifest is None else document(manifest)["files"]
    return {part["object_name"]: part["generation"] for file in files for part in file["components"]}


def leftovers_of_abandoned(world: World, ledger: Ledger) -> Iterator[str]:
    """Sources and final objects of checkpoints that a restore abandoned.

    An object of another generation than the manifest's is not a source: it comes from a repeat of a finished
    upload, no compose takes it, and clean-up finds it by its attempt.
    """
    attempts = {ledger.completed[each]["attempt"] for each in ledger.abandoned}
    if not attempts:
        return
    sources: dict[str, int] = {}
    for each in ledger.abandoned:
        sources.update(components_in(world, ledger.completed[each]["manifest"]))
    for _bucket_name, name, payload, stat in world.objects():
        is_source = sources.get(name) == stat.generation
        is_final = name.startswith("out/") and payload.partition(b"/")[0].decode() in attempts
        if is_source or is_final:
            yield name


def missing_in_archive(world: World, before: Ledger, slot: int) -> Iterator[str]:
    """What a snapshot in this slot leaves out although it is not archived."""
    for each, record in before.completed.items():
        digest = hashlib.sha256(record["batch"]["key"].encode()).hexdigest()
        if record["slot"] < slot and not world.names(f"{ROOT}archive/keys/{digest}/{each:010d}-"):
            yield f"the batch of checkpoint {each} is in no archive"
    ended = {attempt: record["slot"] for attempt, record in before.dead.items()}
    for each, record in before.subsumed.items():
        ended[before.completed[each]["attempt"]] = record["slot"]
    for attempt, at in ended.items():
        half = half_of(attempt)
        if at < slot and world.payload(f"{ROOT}archive/attempts/{half:016x}") is None:
            yield f"the end of attempt {attempt} is in no archive"
    for request, at in before.requests.items():
        if at < slot and world.payload(f"{ROOT}archive/requests/{request}") is None:
            yield f"the answer to request {request} is in no archive"


def _temporary(world: World, inside: str, half: int) -> dict[str, int]:
    """Names and generations of temporary objects of one file and attempt, in any bucket."""
    return {
        name: stat.generation
        for _bucket_name, name, _payload, stat in world.objects()
        if ".inprogress/" in name and inside in name and half_of(name.rpartition("/")[2]) == half
    }


def judge(world: World, num_retained: int, batches: list[int] | None) -> list[str]:
    """Everything that is wrong at the end of a run, after one clean-up.

    `batches`: the expected chain, in order; `None` to skip this check.
    """
    ledger = read_ledger(world, num_retained)
    wrong = list(ledger.broken)
    chain = [number_of(key) for key in ledger.chain_keys]
    if batches is not None and chain != batches:
        wrong.append(f"the chain has batches {chain}, not {batches}")
    if ledger.open is not None:
        wrong.append(f"attempt {ledger.open['attempt']} is still open")
    for each in ledger.kept:
        wrong += _wrong_state(world, ledger, each)
    for each in ledger.chain:
        wrong += _wrong_files(world, ledger, each)
    wrong += _left_over(world, ledger)
    wrong += missing_in_archive(world, ledger, ledger.snapshot_slot)
    return wrong


def _wrong_state(world: World, ledger: Ledger, each: int) -> Iterator[str]:
    record = ledger.completed[each]
    batches = [number_of(ledger.completed[one]["batch"]["key"]) for one in ledger.chain_to(each)]
    for name in needed_by(world, record["manifest"]):
        if world.payload(name) is None:
            yield f"checkpoint {each} needs {name}, which is gone"
            return
    for operator in OPERATORS:
        found = state_in(world, record["manifest"], operator)
        if (found or {}) != state_of(batches, operator):
            yield f"{operator} at checkpoint {each} is {found}, not {state_of(batches, operator)}"
    payload = world.payload(record["manifest"])
    assert payload is not None
    positions = {name: source["position"] for name, source in document(payload)["sources"].items()}
    if positions != {"": None, "batch": batches[-1]}:  # the keys name no source
        yield f"checkpoint {each} has positions {positions}"


def _wrong_files(world: World, ledger: Ledger, each: int) -> Iterator[str]:
    record = ledger.completed[each]
    batch = number_of(record["batch"]["key"])
    if each not in ledger.committed:
        yield f"checkpoint {each} is not committed"
        return
    blocked = {file["name"] for file in ledger.blocked(each)}
    for file in FILES:
        name = file_name(batch, file)
        own = file_bytes(record["attempt"], batch, file)
        final, taken = world.payload(name), world.payload(f"taken/{each}/{file}")
        resolved = ledger.resolution_of(each, name)
        unpublished = name in blocked or (resolved is not None and resolved["resolution"] == "keep")
        if unpublished:
            if final == own or taken is not None:
                yield f"{name} exists, but must not be published"
            if name in ledger.committed[each]["published"]:
                yield f"{name} is recorded as published, but must not be"
            continue
        if name not in ledger.committed[each]["published"]:
            yield f"{name} is not recorded as published"
        if [body for body in (final, taken) if body == own] != [own]:
            yield f"{name} of checkpoint {each} is {final!r}, and a consumer has {taken!r}"


_KEPT_FOR_GOOD = (f"{ROOT}timeline/", f"{ROOT}archive/", f"{ROOT}clean-up/", "taken/")


def _left_over(world: World, ledger: Ledger) -> Iterator[str]:
    needed = {f"{ROOT}hint"}
    for each in ledger.kept:
        needed.update(needed_by(world, ledger.completed[each]["manifest"]))
    finals = {
        file_bytes(ledger.completed[each]["attempt"], number_of(ledger.completed[each]["batch"]["key"]), file)
        for each in ledger.chain
        for file in FILES
    }
    halves = {
        half_of(ledger.completed[each]["attempt"])
        for each in ledger.kept
        if ledger.blocked(each) and each not in ledger.abandoned
    }
    for _bucket_name, name, payload, stat in world.objects():
        if name in needed or name.startswith(_KEPT_FOR_GOOD):
            continue
        if name.startswith("out/"):
            if payload not in finals and stat.metadata.get("whose") != FOREIGN.decode():
                yield f"left over: {name} with {payload!r}"
        elif not _of_blocked(name, halves):
            yield f"left over: {name}"


def _of_blocked(name: str, halves: set[int]) -> bool:
    """Everything of a checkpoint with a blocked file stays until the file is resolved."""
    if ".inprogress/" in name:
        return half_of(name.rpartition("/")[2]) in halves
    if name.startswith(f"{ROOT}attempts/"):
        return half_of(name.split("/")[3]) in halves
    return False
