"""The site: `sphinx-build -W -b html docs build/site`. Owns how the pages are rendered, not what they say."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator
from importlib import metadata
from typing import TYPE_CHECKING, Any

import click
from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.addnodes import pending_xref

import dstl_dagster.components
from dstl_dagster.cli import main

if TYPE_CHECKING:
    from docutils.nodes import document
    from sphinx.application import Sphinx

project = "dstl-dagster"
author = "dstl-dagster developers"
release = metadata.version(project)
html_title = f"{project} {release}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
root_doc = "index"
html_theme = "furo"
html_copy_source = False
# Fields of the same name in several classes: docstrings name none of them as a link.
suppress_warnings = ["ref.python"]

# Headings are link targets as they are on GitHub.
myst_heading_anchors = 3
myst_enable_extensions = ["fieldlist"]

autodoc_default_options = {"members": True, "imported-members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # fields as one list, not as an entry each


def _quoted_as_in_markdown(*event: Any) -> None:
    """Docstrings quote code by one backtick, also before a letter (`File`s)."""
    lines: list[str] = event[-1]
    lines[:] = re.sub(r"(?<!`)`([^`]+)`(?!`)(?=(\w?))", _literal, "\n".join(lines)).split("\n")


def _literal(code: re.Match[str]) -> str:
    return f"``{code[1]}``" + ("\\ " if code[2] else "")


def _for_users(_: Sphinx, what: str, *event: Any) -> None:
    """What a module owns, and does not own, is for maintainers: it stays in the source."""
    lines: list[str] = event[-1]
    if what == "module":
        paragraphs = "\n".join(lines).split("\n\n")
        lines[:] = "\n\n".join(each for each in paragraphs if not each.startswith("Owns ")).split("\n")


def _no_links_to_builtins(_: Sphinx, page: document) -> None:
    """A field that is called `bytes` is not the type."""
    for link in list(page.findall(pending_xref)):
        if link.get("reftarget") in dir(builtins):
            link.replace_self(link.children)


def _commands(context: click.Context) -> Iterator[click.Context]:
    if not isinstance(context.command, click.Group):
        yield context
        return
    for name in context.command.list_commands(context):
        found = context.command.get_command(context, name)
        assert found is not None
        yield from _commands(click.Context(found, context, info_name=name, terminal_width=100))


class DstlCommands(Directive):
    """The help of every command of `dstl`, as the command prints it."""

    def run(self) -> list[nodes.Node]:
        """A section for each."""
        sections: list[nodes.Node] = []
        for each in _commands(click.Context(main, info_name="dstl", terminal_width=100)):
            path = each.command_path
            help_text = each.get_help()
            title = nodes.title(path, path)
            block = nodes.literal_block(help_text, help_text, language="text")
            sections.append(nodes.section("", title, block, ids=[nodes.make_id(path)]))
        return sections


def _type_in_yaml(schema: dict[str, Any]) -> str:
    kinds = schema.get("anyOf", [schema])
    types = {each.get("type", "object") for each in kinds}
    words = [choice for each in kinds for choice in each.get("enum", [])]
    if words or ("boolean" in types and "integer" not in types):
        return " or ".join(words or ["true", "false"])
    if types & {"array", "object"}:
        return "list" if "array" in types else "mapping"
    return "text or number" if "integer" in types else "text"


class DstlFields(Directive):
    """The fields of a component in YAML: type, default, meaning. Those of another may be left out."""

    required_arguments, optional_arguments = 1, 1

    def run(self) -> list[nodes.Node]:
        """A definition list."""
        component, *others = (getattr(dstl_dagster.components, name) for name in self.arguments)
        schema = component.get_model_cls().model_json_schema()["properties"]
        lines = [component.__doc__.partition("\n\n")[0], ""]
        for name in schema:
            field = component.model_fields[name]
            if any(name in each.model_fields for each in others):
                continue
            default = field.get_default(call_default_factory=True)
            shown = (
                "required" if field.is_required() else f"default: ``{default}``" if default else "optional"
            )
            lines.append(f"``{name}``: {_type_in_yaml(schema[name])}; {shown}")
            lines += [f"   {each}" for each in (field.description or "").splitlines()] + [""]
        _quoted_as_in_markdown(lines)
        found = nodes.container()
        self.state.nested_parse(StringList(lines, ""), 0, found)
        return found.children


def setup(app: Sphinx) -> None:
    """Sphinx calls it."""
    app.add_directive("dstl-fields", DstlFields)
    app.add_directive("dstl-commands", DstlCommands)
    app.connect("autodoc-process-docstring", _quoted_as_in_markdown, priority=400)  # napoleon comes at 500
    app.connect("autodoc-process-docstring", _for_users, priority=300)
    app.connect("doctree-read", _no_links_to_builtins)
