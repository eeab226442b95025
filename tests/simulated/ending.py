"""The end of each run: the job is completed without further faults, cleaned up once, and judged.

Owns these final steps. Does not own what is right (`oracle`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.simulated import actions, batches, bystanders
from tests.simulated.oracle import judge, read_ledger
from tests.simulated.process import Notes, Process

_NOTHING: Notes = {"attempt": None}


def end_and_judge(
    new_process: Callable[[str], Process],
    wanted: Sequence[int],
    taken: Sequence[int] = (),
    *,
    audit: bool = False,
) -> list[str]:
    """Apply the wanted batches that are not on the chain, let time pass, clean up once; return what is wrong.

    `taken` are the batches whose consumers may have been interrupted. With `audit`, the job's own audit must
    also find neither damage nor garbage.
    """
    process = new_process("end")
    setting, world = process.setting, process.world
    applied = set(read_ledger(world, setting.num_retained).chain_keys)
    for batch in (each for each in wanted if batches.key_of(each) not in applied):
        for file in batches.FILES:
            bystanders.remove_foreign(batch, file)(process, _NOTHING)
        act = actions.whole_batch(batch, take_over=True, clean=False)
        act(new_process(f"end/{batch}"), _NOTHING)
    actions.compose_commit(new_process("end/compose-commit"), _NOTHING)
    for batch in taken:
        bystanders.take_files(batch)(new_process(f"end/take {batch}"), _NOTHING)
    if setting.reader_grace:
        actions.clean_up(new_process("end/give up"), _NOTHING)
        bystanders.wait_out_grace(process, _NOTHING)
    actions.clean_up(new_process("end/clean up"), _NOTHING)
    wrong = judge(world, setting.num_retained, list(wanted))
    if audit:
        found = new_process("end/audit").coordinator().audit()
        wrong += [f"the audit finds damage: {each}" for each in found.damage]
        if found.garbage is None or found.garbage.objects:
            wrong.append(f"the audit finds garbage: {found.garbage}")
    return wrong
