"""The page of results: tables and plots of curves, and what the comparison page quotes of them.

Owns how curves are written, drawn and read. Pure but for `draw`. Does not own what is measured (`results`).

`RESULTS.md` is one section for each plot, in the order of `FILES`; a run of some parts replaces theirs and
keeps the others. `docs/comparison.md` repeats numbers of it between two marks: `with_quotes` writes them, and
a test holds the two pages together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

__all__ = ["FILES", "Curve", "Plot", "Point", "Section", "draw", "page_of", "sections_of", "with_quotes"]

FILES: Final = (
    "results-state-seconds",
    "results-state-bytes",
    "results-log",
    "results-levels-bytes",
    "results-levels-seconds",
    "results-partition",
    "results-commit",
    "results-history",
    "results-stream-seconds",
    "results-stream-bytes",
    "results-look-up",
    "results-files",
    "results-nexmark",
    "results-merge",
    "results-sink",
    "results-first",
    "results-day",
    "results-changelog",
)
"""All plots there are, in the page's order."""

ABSENT: Final = "-"
BEGIN: Final = "<!-- numbers of benchmarks/RESULTS.md: begin -->"
END: Final = "<!-- numbers of benchmarks/RESULTS.md: end -->"
HEAD: Final = """\
# Results

Written by `python benchmarks/results.py`; its head says what is measured. Medians; in brackets the range of
the repetitions. `-`: not measured at this size, or not within its time. Each section says where it was
measured.
"""


@dataclass(frozen=True)
class Point:
    """One size: the values of each repetition."""

    size: int
    values: Sequence[float]

    def told(self) -> str:
        """Median, and range if there is one."""
        least, most = number(min(self.values)), number(max(self.values))
        middle = number(median(self.values))
        return middle if least == most else f"{middle} ({least} to {most})"


@dataclass(frozen=True)
class Curve:
    """Points in order of size; not every curve has every size."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Plot:
    """Curves over sizes.

    Attributes:
        file: one of `FILES`; of the image, without its folder and suffix.
        told: how it was measured: versions, machine, repetitions.
        missing: who was not measured, each with the reason.
    """

    file: str
    title: str
    across: str
    up: str
    curves: Sequence[Curve]
    told: str = ""
    missing: Sequence[str] = ()

    def section(self) -> str:
        """Its part of the page."""
        lines = [f"## {self.title}: {self.up}", "", f"![{self.title}](../docs/images/{self.file}.svg)", ""]
        lines += [f"| {self.across} | {' | '.join(curve.name for curve in self.curves)} |"]
        lines += ["|" + "---|" * (len(self.curves) + 1)]
        for size in sorted({point.size for curve in self.curves for point in curve.points}):
            cells = ({point.size: point.told() for point in curve.points} for curve in self.curves)
            lines += [f"| {size:,} | {' | '.join(each.get(size, ABSENT) for each in cells)} |"]
        lines += ["", self.told] if self.told else []
        lines += ["", f"Not measured: {'; '.join(self.missing)}."] if self.missing else []
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Section:
    """A part of the page, read back.

    Attributes:
        medians: by curve and size, as the page tells them.
    """

    file: str
    title: str
    text: str
    medians: Mapping[str, Mapping[int, str]] = field(default_factory=dict)


def number(value: float) -> str:
    """Three digits that count, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def sections_of(page: str) -> list[Section]:
    """The sections of a page that `page_of` wrote, in order."""
    found = []
    for text in re.split(r"^(?=## )", page, flags=re.MULTILINE)[1:]:
        title = text.removeprefix("## ").partition("\n")[0]
        (file,) = re.findall(r"\.\./docs/images/([\w-]+)\.svg", text)
        rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
        medians: dict[str, dict[int, str]] = {name: {} for name in rows[0][1:]}
        for size, *cells in rows[1:]:
            for name, cell in zip(medians, cells, strict=True):
                if cell != ABSENT:
                    medians[name][int(size.replace(",", ""))] = cell.partition(" (")[0]
        found.append(Section(file, title, text.rstrip() + "\n", medians))
    return found


def page_of(plots: Iterable[Plot], before: str = "", missing: Sequence[str] = ()) -> str:
    """The page with these plots, and of the one `before` what they do not replace.

    `missing`: who could not be measured at all, each with the reason.
    """
    texts = {each.file: each.text for each in sections_of(before)} | {
        plot.file: plot.section() for plot in plots
    }
    absent = [f"Not measured by the last run: {'; '.join(missing)}.\n"] if missing else []
    return "\n".join([HEAD, *absent, *(texts[file] for file in FILES if file in texts)])


def quotes(page: str) -> str:
    """What the comparison page says of it: tables where several are compared, and all plots."""
    sections = {each.file: each for each in sections_of(page)}
    parts = [_at_most(sections, "results-files"), _upserts(sections)]  # what others do better, first
    parts += [_at_most(sections, "results-stream-seconds", "results-stream-bytes")]
    parts += [_at_most(sections, file) for file in ("results-changelog", "results-commit")]
    parts += [f"![{each.title}](images/{file}.svg)" for file, each in sections.items()]
    return "\n\n".join(part for part in parts if part)


def with_quotes(comparison: str, page: str) -> str:
    """The comparison page with the numbers of this page between its marks."""
    before, begun, rest = comparison.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (begun and ended):
        raise ValueError(f"the comparison page has no {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{quotes(page)}\n\n{END}{after}"


def _upserts(sections: Mapping[str, Section]) -> str:
    """One row for each that keeps a table, of the size that was read."""
    seconds, kib, log = (sections.get(f"results-{name}") for name in ("state-seconds", "state-bytes", "log"))
    if seconds is None or kib is None or log is None:
        return ""
    size = int(re.sub(r"\D", "", log.title))
    last = max(length for each in log.medians.values() for length in each)
    lines = [
        f"10,000 upserts into {size:,} rows; and all of them read, after 0 and after {last} such upserts:",
        "",
        f"| | seconds | KiB written | read after 0 (s) | read after {last} (s) |",
        "|---|---|---|---|---|",
    ]
    for name in dict.fromkeys([*seconds.medians, *log.medians]):
        cells = [each.medians.get(name, {}).get(size, ABSENT) for each in (seconds, kib)]
        cells += [log.medians.get(name, {}).get(length, ABSENT) for length in (0, last)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, *_conditions(log)])


def _at_most(sections: Mapping[str, Section], *files: str) -> str:
    """The largest size of these sections, a column for each of them."""
    found = [sections[file] for file in files if file in sections]
    if not found:
        return ""
    tables = []
    for each in found:
        size = max(size for sizes in each.medians.values() for size in sizes)
        across = each.text.split("\n| ", 1)[1].partition(" |")[0]
        tables.append((each, size, f"{each.title.rpartition(': ')[2]}, at {size:,} {across}"))
    what = found[0].title.rpartition(": ")[0]
    lines = [f"{what}:", "", f"| | {' | '.join(head for _, _, head in tables)} |"]
    lines += ["|" + "---|" * (len(tables) + 1)]
    for name in found[0].medians:
        cells = [each.medians.get(name, {}).get(size, ABSENT) for each, size, _ in tables]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, *_conditions(found[0])])


def _conditions(section: Section) -> list[str]:
    """Date, commit, peers and notes, after an empty line; `RESULTS.md` has our versions and the machine."""
    lines = re.findall(r"^\d{4}-\d\d-\d\d, commit .*$", section.text, re.MULTILINE)
    return ["", *(re.sub(r"; Python .* cores, load [\d.]*\d", "", each) for each in lines)]


def draw(plot: Plot, folder: Path) -> None:
    """The plot as an SVG; the same numbers give the same file."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["svg.hashsalt"] = plot.file
    figure = Figure(figsize=(6, 3.6 + 0.15 * max(0, len(plot.curves) - 2)), layout="constrained")
    axes = figure.add_subplot()
    for curve in plot.curves:
        sizes = [point.size for point in curve.points]
        axes.plot(sizes, [median(point.values) for point in curve.points], marker="o", label=curve.name)
        lowest, highest = ([of(point.values) for point in curve.points] for of in (min, max))
        axes.fill_between(sizes, lowest, highest, alpha=0.2)
    axes.set(title=plot.title, xlabel=plot.across, ylabel=plot.up)
    if min(point.size for curve in plot.curves for point in curve.points) > 0:
        axes.set_xscale("log")
    axes.set_yscale("log")
    axes.legend(fontsize="small")
    axes.grid(visible=True, alpha=0.3)
    figure.savefig(folder / f"{plot.file}.svg", metadata={"Date": None})
