"""docs/checkpoints shows what really happens, line by line."""

from __future__ import annotations

import os
import re
import shlex

import pytest
from click.testing import CliRunner

from dstl_dagster.cli import main
from tests.docs.pages import chapters

PAGE = "\n".join(page.read_text(encoding="utf-8") for page in chapters("checkpoints"))


def shown() -> list[tuple[str, list[str]]]:
    """Each command on the page, and the lines that the page shows for it; none if the page omits them."""
    steps: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                steps.append((line[2:], []))
            else:
                steps[-1][1].append(line)
    return steps


def sizes_hidden(text: str) -> str:
    """Sizes depend on the versions of Arrow and of the codec."""
    return re.sub(r"[1-9][\d.,]* (B|KiB)", "some bytes", text)


def test_the_session_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words and numbers are as on the page."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    (setup,) = re.findall(r"<!-- setup -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(setup, "docs/checkpoints", "exec", dont_inherit=True), {})
    for command, lines in shown():
        program, *arguments = shlex.split(command.replace("$DSTL_STORE", os.environ["DSTL_STORE"]))
        assert program == "dstl"
        result = CliRunner(env=dict(os.environ)).invoke(main, arguments)
        assert result.exit_code == 0, (command, result.output)
        if lines:
            expected = "\n".join(lines).replace("$DSTL_STORE", os.environ["DSTL_STORE"])
            found = "\n".join(line.rstrip() for line in result.stdout.splitlines() if line.strip())
            assert sizes_hidden(found) == sizes_hidden(expected), command
