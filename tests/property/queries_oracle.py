"""What must be true when all writers of one world of `queries` have come to their end.

Owns the comparison with what the world says. Uses nothing that the writers use but the reading of a job.
"""

from __future__ import annotations

from dstl_dagster.keyed import KeyedState
from dstl_dagster.spark.streaming.micro_batches import POSITION
from tests.property.queries_world import JOB, RIGHT, World, line, rows_of

OF_A_RACE = {"attempt_open", "moved", "fenced", "unavailable"}
"""Kinds that a query or a run may meet which shares the job with another writer, or whose requests fail."""
OF_A_WRONG_QUERY = OF_A_RACE | {"other_query"}


def faults(world: World) -> list[str]:
    """What is other than it must be."""
    found = [f"{RIGHT} met {dict(world.told[RIGHT])}"] if world.peaceful and world.told[RIGHT] else []
    for name, told in world.told.items():
        allowed = OF_A_RACE if name == RIGHT or name.startswith("day") else OF_A_WRONG_QUERY
        strange = set(told) - allowed - {"died"}
        if strange:
            found.append(f"{name} was told {sorted(strange)}")
    coordinator = world.coordinator()
    coordinator.compose_commit()
    keys = [record.idempotency_key for record in coordinator.timeline.records() if record.kind == "completed"]
    queries = [f"spark-query:{query}:{batch}" for query, batch in world.micro_batches()]
    if [key for key in keys if key.startswith("spark-query")] != queries:
        found.append(f"micro-batches {keys}")
    if sorted(key for key in keys if key.startswith("day")) != [f"day {day}" for day in range(world.days)]:
        found.append(f"days {keys}")
    latest = coordinator.latest()
    assert latest is not None
    query, number = world.micro_batches()[-1]
    if latest.positions != {POSITION: {"query_id": query, "batch_id": number}}:
        found.append(f"position {latest.positions}")
    found += _files(world, keys) if world.files else _rows(world, keys)
    return found + _leftovers(world)


def _writer(key: str) -> tuple[str, int]:
    if key.startswith("day"):
        return key, 0
    _, query, batch = key.split(":")
    return query, int(batch)


def _rows(world: World, keys: list[str]) -> list[str]:
    expected: dict[int, str] = {}
    for key in keys:
        expected.update(rows_of(*_writer(key)))
    latest = world.coordinator().latest()
    assert latest is not None
    state = KeyedState.of(world.store, latest.manifest, "op")
    rows = [] if state is None else [row for table in state.tables() for row in table.to_pylist()]
    there = sorted((row["id"], row["value"]) for row in rows)
    return [] if there == sorted(expected.items()) else [f"rows {there}, not {sorted(expected.items())}"]


def _files(world: World, keys: list[str]) -> list[str]:
    expected = {}
    for key in keys:
        writer, number = _writer(key)
        name = f"days/{writer[4:]}.txt" if key.startswith("day") else f"out/{writer}-{number:010d}.txt"
        expected[name] = "".join(f"{line(row)}\n" for row in rows_of(writer, number))
    names = [stat.name for folder in ("out/", "days/") for stat in world.store.list(folder)]
    there = {name: world.store.get(name).decode() for name in names}
    return [] if there == expected else [f"files {there}, not {expected}"]


def _leftovers(world: World) -> list[str]:
    """After a clean-up without grace: nothing of an attempt that made no checkpoint, and no other garbage."""
    coordinator = world.coordinator()
    view = coordinator.timeline.tail()
    if view.open_attempt is not None:
        # Its owner died and has not come back: the next trigger takes over.
        coordinator.abort(coordinator.trigger(take_over=True))
    coordinator.clean_up()
    records = coordinator.timeline.records()
    complete = {str(record.attempt) for record in records if record.kind == "completed"}
    names = [stat.name for stat in world.store.list(f"dstl/{JOB}/attempts/")]
    left = [name for name in names if name.split("/")[3] not in complete]
    left += [stat.name for stat in world.store.list(".inprogress/")]
    audit = coordinator.audit()
    in_order = audit.in_order and audit.garbage is not None and audit.garbage.objects == 0
    return ([f"left behind {left}"] if left else []) + ([] if in_order else [f"audit {audit}"])
