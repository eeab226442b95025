"""The error for YAML that a component cannot use: the file, the line, the field, and what serves there.

Owns these sentences, in place of pydantic's. Does not own which fields there are (`component`).
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, get_args

import yaml  # type: ignore[import-untyped] # which Dagster needs, too
from pydantic import BaseModel, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic.fields import FieldInfo

_MEANT: Final[Mapping[str, str]] = {
    "pool": "write op: {pool: ...}",
    "op_tags": "write op: {tags: {...}}",
    "sources": "the assets that the job reads are `deps`",
    "upstream": "the assets that the job reads are `deps`",
    "key": "an asset is <job>/<state>: write job and state",
    "key_prefix": "an asset is <job>/<state>: write job and state",
    "name": "an asset is <job>/<state>: write job and state",
    "schema": "the state's columns are `state_schema`",
}
"""Fields of other components, and Python's words, in ours."""
_NESTED: Final = frozenset({"ttl", "op", "retry_policy", "downstream"})
"""Fields with fields of their own: text there is a template, and Dagster's reader fails at other text."""


def sentences(error: ValidationError, fields: Mapping[str, FieldInfo]) -> Iterator[tuple[str, str]]:
    """For each field that `error` is about, once: its name, and one sentence that begins with it."""
    seen = set()
    for each in error.errors():
        name, *inner = map(str, each["loc"] or ("attributes",))
        if name not in seen:
            seen.add(name)
            yield name, f"{name}: {_said(name, each, inner, fields)}"


def _said(name: str, error: Any, inner: list[str], fields: Mapping[str, FieldInfo]) -> str:
    value, field = error["input"], fields.get(name)
    if field is None:
        near = get_close_matches(name, fields, n=1)
        hint = _MEANT.get(name) or (f"did you mean {near[0]}?" if near else f"it has {', '.join(fields)}")
        return f"the component has no such field: {hint}"
    serves = _serves(field)
    if error["type"] == "missing":
        return f"{inner[-1] if inner else 'it'} is required. {serves}"
    if error["type"] == "extra_forbidden":
        return f"it has no field {inner[-1]}. {serves}"
    if value is None:
        return f"a template gave nothing, as for an environment variable that is not set. {serves}"
    return f"{value!r} cannot be used. {serves}"


def _serves(field: FieldInfo) -> str:
    words = [each for each in get_args(field.annotation) if isinstance(each, str)]
    if words:
        return f"Write {' or '.join(words)}"
    if field.annotation is bool:
        return "Write true or false"
    texts = [yaml.safe_dump(each, default_flow_style=True) for each in field.examples or ()]
    examples = [each.removesuffix("...\n").strip() for each in texts]
    if not examples and isinstance(field.default, str | int | float) and field.default != "":
        examples = [str(field.default)]
    such = f" Write, for example, {' or '.join(examples)}" if examples else ""
    return f"{' '.join(str(field.description).split())}{such}"


def checked_model(model: type[BaseModel], fields: Mapping[str, FieldInfo]) -> type[BaseModel]:
    """The same, with our sentences."""

    class Checked(model):  # type: ignore[misc, valid-type] # made by Dagster
        @model_validator(mode="wrap")
        @classmethod
        def _in_words(cls, value: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
            read, found = None, []
            try:
                read = handler(value)
            except ValidationError as error:
                found = list(sentences(error, fields))
            given = value if isinstance(value, dict) else {}
            for name in sorted(_NESTED & set(given) & set(fields)):
                text = given[name]
                if isinstance(text, str) and "{{" not in text:
                    found.append((name, f"{name}: {text!r} cannot be used. {_serves(fields[name])}"))
            if not found:
                return read
            errors: list[Any] = [
                {"type": "value_error", "ctx": {"error": ValueError(said)}, "loc": (name,), "input": None}
                for name, said in found
            ]
            raise ValidationError.from_exception_data(model.__name__, errors)

    Checked.__name__ = Checked.__qualname__ = model.__name__
    return Checked


def place_of(tree: Any, field: str) -> str | None:
    """`file:line` of a field, of the attributes where it stands nowhere; `None` without a file."""
    if tree is None:
        return None
    name = "state_schema" if field == "schema" else field  # the decorator's word
    return str(tree.lookup_closest_and_path(["attributes", name], trace=None)[0])


def repeated_key(path: Path) -> tuple[int, str] | None:
    """Of the first key that a mapping of the file has twice: its line, from 1, and the key."""
    nodes = list(yaml.compose_all(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader))
    while nodes:
        node = nodes.pop(0)
        if isinstance(node, yaml.SequenceNode):
            nodes.extend(node.value)
        if isinstance(node, yaml.MappingNode):
            seen = set()
            for key, value in node.value:
                if str(key.value) in seen:
                    return key.start_mark.line + 1, str(key.value)
                seen.add(str(key.value))
                nodes.append(value)
    return None
