"""A function that a decorator makes an asset of: what it asks for, by which words, and what it cannot be.

Owns its parameters and their hints. Does not own their values (`checkpointed_asset`, and Dagster).
"""

from __future__ import annotations

import ast
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, update_wrapper
from importlib import import_module
from typing import Any, Final

import dagster as dg

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.orchestration.inject.resources import ChangelogStorageResource

BATCH: Final = "batch"
CHANGELOG: Final = "changelog"
_CONTEXT: Final = ("context", "_context", "context_", "_")
"""The names by which Dagster knows a context, as the first parameter."""

_Kind = inspect.Parameter
_RESOURCE: Final = dg.ResourceParam[int].__metadata__  # type: ignore[attr-defined] # of `Annotated`


@dataclass(frozen=True)
class AssetFunction:
    """A function of a partition's data.

    Attributes:
        context: its parameter for Dagster's context; `None` without one.
        asked: all others but `batch`, with types for hints, as Dagster gives them: resources by their types,
            `config`, and an upstream asset for each that is left.
        takes_batch: it asks for the open batch.
    """

    function: Callable[..., Any]
    context: inspect.Parameter | None
    asked: tuple[inspect.Parameter, ...]
    takes_batch: bool

    @classmethod
    def of(cls, function: Callable[..., Any]) -> AssetFunction:
        """Raises: InvalidInputError for what is no plain function."""
        if not inspect.isfunction(function):
            raise InvalidInputError(
                f"@checkpointed_asset decorates a function, as @checkpointed_asset('orders', keys=[...]); "
                f"{function!r} is none"
            )
        name = function.__name__
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidInputError(
                f"{name}() is async: a batch is written by one thread, so make it a plain def"
            )
        if inspect.isgeneratorfunction(function):
            raise InvalidInputError(
                f"{name}() yields: return one frame with all rows; checks and metadata go along with it, as "
                "dagster.MaterializeResult(value=rows, check_results=[...])"
            )
        context, asked, takes_batch = None, [], False
        hints = _Names(function)
        for place, parameter in enumerate(inspect.signature(function).parameters.values()):
            if parameter.kind is _Kind.VAR_POSITIONAL:
                raise InvalidInputError(f"{name}() takes *{parameter.name}: name each parameter")
            if place == 0 and parameter.name in _CONTEXT:
                context = parameter.replace(annotation=_context_type(parameter.annotation))
            elif parameter.name == BATCH:
                takes_batch = True
            else:
                asked.append(parameter.replace(annotation=_bare(hints.resolved(parameter))))
        return cls(function, context, tuple(asked), takes_batch)

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def spark(self) -> str | None:
        """The parameter for a resource that has a Spark session; `None` without one."""
        found = (each.name for each in self.asked if hasattr(each.annotation, "spark_session"))
        return next(found, None)

    def as_asked(
        self, body: Callable[..., Any], *, context: bool, changelog: bool | None
    ) -> Callable[..., Any]:
        """`body(context, **given)`, as a function that Dagster takes for this one, and links to it.

        Args:
            context: it takes the context also where the function does not.
            changelog: whether it takes the resource `changelog`; `None`: where the function does.
        """
        first = self.context
        if context and first is None:
            first = inspect.Parameter(
                _CONTEXT[0], _Kind.POSITIONAL_OR_KEYWORD, annotation=dg.AssetExecutionContext
            )
        asked = [each for each in self.asked if each.name != CHANGELOG or changelog is not False]
        if changelog and CHANGELOG not in {each.name for each in asked}:
            own = inspect.Parameter(CHANGELOG, _Kind.KEYWORD_ONLY, annotation=ChangelogStorageResource)
            rest = [each for each in asked if each.kind is _Kind.VAR_KEYWORD]
            asked = [*(each for each in asked if each.kind is not _Kind.VAR_KEYWORD), own, *rest]

        def asked_for(*positional: Any, **given: Any) -> Any:
            bound = signature.bind(*positional, **given)
            known = dict(bound.arguments)
            found = known.pop(first.name) if first is not None else None
            for each in asked:
                if each.kind is _Kind.VAR_KEYWORD:
                    known |= known.pop(each.name, {})
            return body(found, known)

        signature = inspect.Signature([*([first] if first else []), *asked])
        compute: Any = lambda *positional, **given: asked_for(*positional, **given)  # noqa: E731 - its line is replaced
        # Code references, and tracebacks, lead to the user's line.
        code = self.function.__code__
        compute.__code__ = compute.__code__.replace(
            co_filename=code.co_filename, co_firstlineno=code.co_firstlineno, co_name=code.co_name
        )
        update_wrapper(compute, self.function)
        compute.__signature__ = signature
        # By these, Dagster before 1.13.24 distinguishes resources from inputs.
        compute.__annotations__ = {
            name: each.annotation
            for name, each in signature.parameters.items()
            if each.annotation is not _Kind.empty
        }
        made: Callable[..., Any] = compute
        return made

    def call(self, context: Any, given: Mapping[str, Any], batch: Any) -> Any:
        """With its own parameters and no others."""
        known = dict(given)
        if not any(each.name == CHANGELOG for each in self.asked):
            known.pop(CHANGELOG, None)
        if self.takes_batch:
            known[BATCH] = batch
        return self.function(*([context] if self.context is not None else []), **known)


def _context_type(hint: Any) -> Any:
    """Dagster gives the context that the hint names, and by default that of an asset."""
    by_op = hint is dg.OpExecutionContext or str(hint).rpartition(".")[2] == "OpExecutionContext"
    return dg.OpExecutionContext if by_op else dg.AssetExecutionContext


def _bare(hint: Any) -> Any:
    """The type itself, where more is noted beside it; `ResourceParam` notes that it is a resource."""
    if typing.get_origin(hint) is not typing.Annotated or set(_RESOURCE) <= set(hint.__metadata__):
        return hint
    return hint.__origin__


class _Names(dict[str, Any]):
    """What a name in a function's hints stands for, also one that its module imports for type checkers."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def resolved(self, parameter: inspect.Parameter) -> Any:
        """The parameter's hint as types. Raises: InvalidInputError."""

        def of_hint() -> None: ...

        of_hint.__annotations__ = (
            {} if parameter.annotation is _Kind.empty else {"hint": parameter.annotation}
        )
        try:
            hints = typing.get_type_hints(of_hint, globalns={}, localns=self, include_extras=True)
        except (NameError, AttributeError, ImportError, SyntaxError, TypeError) as error:
            raise InvalidInputError(
                f"parameter {parameter.name!r} of {self._function.__name__}(): its hint "
                f"{parameter.annotation!r} stands for nothing ({error}): import the type in its module"
            ) from error
        return hints.get("hint", _Kind.empty)

    def __missing__(self, name: str) -> Any:
        scope = getattr(self._function, "__globals__", {})
        if name in scope:
            return scope[name]
        if name in self._for_type_checkers:
            module, attribute = self._for_type_checkers[name]
            found = import_module(module, scope.get("__package__"))
            return found if attribute is None else getattr(found, attribute)
        raise KeyError(name)  # then `eval` looks among the builtins

    @cached_property
    def _for_type_checkers(self) -> dict[str, tuple[str, str | None]]:
        """The imports under `if TYPE_CHECKING`: by name the module, and what is imported of it."""
        try:
            tree = ast.parse(inspect.getsource(sys.modules[self._function.__module__]))
        except (KeyError, OSError, TypeError, SyntaxError):
            return {}
        found: dict[str, tuple[str, str | None]] = {}
        for block in tree.body:
            if not (isinstance(block, ast.If) and ast.unparse(block.test).endswith("TYPE_CHECKING")):
                continue
            for each in block.body:
                if isinstance(each, ast.ImportFrom):
                    module = "." * each.level + (each.module or "")
                    found |= {alias.asname or alias.name: (module, alias.name) for alias in each.names}
                elif isinstance(each, ast.Import):
                    found |= {
                        alias.asname or alias.name.partition(".")[0]: (
                            alias.name if alias.asname else alias.name.partition(".")[0],
                            None,
                        )
                        for alias in each.names
                    }
        return found
