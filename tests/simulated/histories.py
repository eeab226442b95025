"""The scripted histories of the simulated job: their steps in order, and the job's settings.

Owns the scripts. Does not own what a step does (`actions`, `bystanders`), or the faults (`sweep`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from tests.simulated import actions, bystanders
from tests.simulated.process import OWNER, Action, Setting

_HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Step:
    """One action of one process.

    Attributes:
        group: steps of one group restart together if a zombie's decision ended their attempt.
        batch: the highest batch attempted so far.
        takes: the batch whose files a consumer takes in this step.
    """

    name: str
    act: Action
    group: int
    batch: int
    takes: int | None = None


@dataclass(frozen=True)
class History:
    """The life of one job, as a sequence of steps."""

    name: str
    setting: Setting
    steps: tuple[Step, ...]

    @property
    def last_batch(self) -> int:
        return max(step.batch for step in self.steps)


class Script:
    """Collects steps; each method adds a group of them."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._group = 0
        self._batch = 0

    @property
    def last_batch(self) -> int:
        """The highest batch attempted so far."""
        return self._batch

    def history(self, name: str, setting: Setting | None = None) -> History:
        return History(name, setting or Setting(), tuple(self._steps))

    def _add(self, *steps: tuple[str, Action], takes: int | None = None) -> Script:
        self._group += 1
        self._steps += [Step(name, act, self._group, self._batch, takes) for name, act in steps]
        return self

    def batch(
        self,
        batch: int,
        *,
        base: actions.Base = False,
        foreign: str = "",
        owner: str = OWNER,
        take_over: bool = False,
        commit: bool = True,
        clean: bool = True,
    ) -> Script:
        """One batch, each step in a process of its own, like ops. Without `commit` it ends with step 5."""
        self._batch = max(self._batch, batch)
        appended = actions.append(batch, base=base, owner=owner, take_over=take_over)
        put = [(f"foreign {foreign} {batch}", bystanders.put_foreign(batch, foreign))] if foreign else []
        away = [(f"no foreign {batch}", bystanders.remove_foreign(batch, foreign))] if foreign else []
        return self._add(
            *away,
            (f"append {batch}", appended),
            (f"record {batch}", actions.record),
            *put,
            (f"confirm {batch}", actions.confirm),
            *([(f"compose-commit {batch}", actions.compose_commit)] if commit else []),
            *([(f"clean up {batch}", actions.clean_up)] if clean and commit else []),
        )

    def driver(
        self, batch: int, *, base: actions.Base = False, take_over: bool = False, owner: str = OWNER
    ) -> Script:
        """One batch by one process, like a streaming query."""
        self._batch = max(self._batch, batch)
        act = actions.whole_batch(batch, base=base, take_over=take_over, owner=owner)
        return self._add((f"batch {batch}", act))

    def begin(self, batch: int, owner: str) -> Script:
        """An attempt that is never continued."""
        self._batch = max(self._batch, batch)
        return self._add((f"{owner} begins {batch}", actions.append(batch, owner=owner)))

    def abort(self, batch: int) -> Script:
        """An attempt that its owner aborts."""
        self._batch = max(self._batch, batch)
        return self._add((f"append {batch}", actions.append(batch)), (f"abort {batch}", actions.abort()))

    def do(self, name: str, act: Action, *, takes: int | None = None) -> Script:
        return self._add((name, act), takes=takes)

    def compose_commit(self) -> Script:
        return self.do("compose-commit", actions.compose_commit)

    def consumer(self, batch: int) -> Script:
        return self._add((f"take {batch}", bystanders.take_files(batch)), takes=batch)

    def restore(self, batch: int) -> Script:
        return self.do(f"restore {batch}", actions.restore(batch, f"restore-{self._group}"))

    def savepoint(self, batch: int, name: str) -> Script:
        return self.do(f"savepoint {batch}", actions.savepoint(batch, name))

    def release(self, name: str) -> Script:
        return self.do(f"release {name}", actions.release(name))

    def resolve(self, batch: int, file: str, word: str) -> Script:
        return self.do(f"{word} {file} {batch}", actions.resolve(batch, file, word))

    def read(self) -> Script:
        return self.do("read", bystanders.read)

    def clean_up(self) -> Script:
        return self.do("clean up", actions.clean_up)

    def wait(self) -> Script:
        return self.do("wait", bystanders.wait_out_grace)


def _histories() -> list[History]:
    ops = Script().batch(1).batch(2).read().batch(3).batch(4)
    driver = Script().driver(1).driver(2).consumer(2).driver(3, base=True).read().driver(4).driver(5)
    back = Script().batch(1).batch(2, clean=False).batch(3).restore(1).batch(2).clean_up()
    twice = (
        Script()
        .driver(1)
        .driver(2)
        .driver(3)
        .restore(2)
        .restore(1)
        .driver(2)
        .begin(3, "run")
        .restore(1)
        .clean_up()
    )
    anew = (
        Script().driver(1).savepoint(1, "kept").driver(2).driver(3).consumer(2)
        .restore(0).clean_up().read().batch(1).batch(2).begin(3, "run").restore(0)
        .begin(1, "run").clean_up().read()
    )  # fmt: skip
    kept = (
        Script().driver(1).savepoint(1, "kept").driver(2).driver(3).driver(4).consumer(4)
        .restore(1).batch(2).release("kept").batch(3)
    )  # fmt: skip
    branch = (
        Script().driver(1).driver(2).savepoint(2, "branch").driver(3).restore(1).clean_up().read()
        .driver(2).driver(3).release("branch").clean_up()
    )  # fmt: skip
    blocked_kept = (
        Script().driver(1).batch(2, foreign="a").driver(3).driver(4).resolve(2, "a", "keep").clean_up()
    )
    replaced = (
        Script().batch(1, foreign="b").driver(2).resolve(1, "b", "replace").driver(3).consumer(1).clean_up()
    )
    blocked_back = (
        Script()
        .driver(1)
        .batch(2, foreign="a")
        .restore(1)
        .clean_up()
        .do("no foreign 2", bystanders.remove_foreign(2, "a"))
        .driver(2)
    )
    taken_over = (
        Script().driver(1).begin(2, "other").batch(2, take_over=True).begin(3, "other")
        .driver(3, take_over=True).clean_up()
    )  # fmt: skip
    aborted = Script().abort(1).driver(1).abort(2).batch(2).clean_up()
    grace = (
        Script().driver(1).driver(2).driver(3).read().clean_up().wait().clean_up().read()
        .driver(4).restore(3).clean_up().wait().driver(4)
    )  # fmt: skip
    bucket = Script().batch(1).driver(2).consumer(1).batch(3).restore(2).batch(3)
    entropy = Script().batch(1).batch(2, foreign="a").batch(3, commit=False).restore(1).clean_up()
    based = (
        Script().driver(1).driver(2, base=True).driver(3).batch(4, base=True).savepoint(3, "old").driver(5)
    )
    slices = (
        Script().driver(1).driver(2).driver(3, base=(0, 1)).batch(4).savepoint(3, "old")
        .driver(5, base=(2, 3)).read().driver(6, base=(1, 1)).driver(7).release("old").clean_up().read()
    )  # fmt: skip
    slices_back = (
        Script().driver(1).driver(2, base=(2, 3)).driver(3).driver(4, base=(0, 1)).driver(5).restore(3)
        .driver(4, base=(0, 0)).driver(5, base=(1, 3)).clean_up().read()
    )  # fmt: skip
    branches = (
        Script().driver(1).driver(2, base=(0, 1)).savepoint(2, "fork").driver(3, base=(0, 1))
        .savepoint(3, "low").restore(2).driver(3, base=(2, 3)).savepoint(3, "high").release("fork")
        .driver(4).driver(5).clean_up().read()
    )  # fmt: skip
    low, high = actions.Compacted(0, 1), actions.Compacted(2, 3)
    compacted = (
        Script().driver(1).driver(2).driver(3).driver(4, base=low).savepoint(4, "old").driver(5)
        .driver(6, base=high).clean_up().read().driver(7, base=(1, 2)).driver(8)
        .driver(9, base=actions.Compacted(0, 3)).release("old").clean_up().read()
    )  # fmt: skip
    compacted_branches = (
        Script().driver(1).driver(2).driver(3).savepoint(3, "fork")
        .driver(4, base=actions.Compacted(0, 3)).savepoint(4, "one").restore(3)
        .driver(4).savepoint(4, "two").release("fork").driver(5).driver(6).clean_up().read()
    )  # fmt: skip
    long_log = Script().driver(1)
    for batch in range(2, 12):
        long_log.driver(batch, base=(0, 2) if batch == 8 else False)
    long_log.read().clean_up().read()
    return [
        ops.history("ops"),
        driver.history("driver", Setting(num_retained=1)),
        back.history("restore", Setting(num_retained=3)),
        twice.history("restore-twice", Setting(num_retained=5)),
        anew.history("anew", Setting(num_retained=2)),
        kept.history("savepoint", Setting(num_retained=1)),
        branch.history("branch", Setting(num_retained=3)),
        blocked_kept.history("blocked-keep", Setting(num_retained=1)),
        replaced.history("blocked-replace", Setting(num_retained=1)),
        blocked_back.history("blocked-restore", Setting(num_retained=3)),
        taken_over.history("take-over"),
        aborted.history("abort", Setting(num_retained=1)),
        grace.history("grace", Setting(reader_grace=_HOUR)),
        bucket.history("bucket", Setting(temporary_bucket="temporary")),
        based.history("base"),
        slices.history("slices", Setting(num_retained=1)),
        branches.history("slices-branches", Setting(num_retained=1)),
        long_log.history("long-log", Setting(num_retained=2)),
        compacted.history("compacted", Setting(num_retained=1)),
        compacted_branches.history("compacted-branches", Setting(num_retained=1)),
        slices_back.history("slices-restore", Setting(num_retained=3)),
        entropy.history("entropy", Setting(num_retained=3, temporary_bucket="temporary", entropy=True)),
    ]


HISTORIES = {history.name: history for history in _histories()}
