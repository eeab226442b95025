"""Spark's SQL expressions as a tree, as far as rules may use them.

Owns the grammar: tokens, precedence, literals. Does not own names and types (`translate`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple, TypeAlias


class RefusedError(Exception):
    """Why a rule cannot be used. Part of a sentence; the caller says which rule it is."""


class UnfinishedError(RefusedError):
    """The text is no expression in any SQL: it ends too early, or a bracket or quote stands alone."""


@dataclass(frozen=True)
class Literal:
    """`kind`: `number`, `text`, `boolean`, `null`, or a type's name for `DATE '…'`; `text`: as written."""

    kind: str
    text: str


@dataclass(frozen=True)
class Name:
    """Such as `old.total`; its parts as written, without quotes."""

    parts: tuple[str, ...]


@dataclass(frozen=True)
class Field:
    """A field of a struct: `value.name`."""

    value: Node
    name: str


@dataclass(frozen=True)
class Call:
    """A function by its lower-case name, or an operator by its sign; `[]` takes a value and an index."""

    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True)
class Case:
    """`CASE WHEN condition THEN value … ELSE otherwise END`."""

    branches: tuple[tuple[Node, Node], ...]
    otherwise: Node | None


@dataclass(frozen=True)
class Cast:
    """`kind`: the type's name, as written."""

    value: Node
    kind: str


Node: TypeAlias = Literal | Name | Field | Call | Case | Cast

_TOKEN: Final = re.compile(
    r"""
      (?P<space>\s+ | --[^\n]* | /\*.*?\*/)
    | (?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?(?:BD|[LSYDF])?(?!\w))
    | (?P<text>'(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*")
    | (?P<quoted>`(?:[^`]|``)*`)
    | (?P<word>[^\W\d]\w*)
    | (?P<sign><=>|<>|!=|==|<=|>=|\|\||[-=<>+*/%(),.!:[\]])
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
_COMPARED: Final = {"==": "=", "!=": "<>"}
_DATED: Final = ("date", "timestamp", "timestamp_ntz", "timestamp_ltz")
_KEYWORDS: Final = (
    "and", "or", "not", "is", "in", "between", "case", "when", "then", "else", "end", "null", "distinct",
    "from", "like", "rlike", "ilike", "div", "select",
)  # fmt: skip


class Token(NamedTuple):
    """`text`: of a quoted name, or of text, what it stands for."""

    kind: str
    text: str


class Parser:
    """Reads one text from its beginning. Its methods raise RefusedError."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0

    def whole(self) -> Node:
        """The one expression that the text is."""
        found = self._either()
        self.end()
        return found

    def end(self) -> None:
        """Pass if nothing is left."""
        if self._at < len(self._tokens):
            raise self._unexpected()

    @property
    def at_end(self) -> bool:
        """Whether nothing is left."""
        return self._at == len(self._tokens)

    def took(self, *words: str) -> bool:
        """Read these words or signs, if they are next."""
        found = self._tokens[self._at : self._at + len(words)]
        same = [token.text.lower() for token in found if token.kind in ("word", "sign")] == list(words)
        self._at += len(words) if same else 0
        return same

    def need(self, *words: str) -> None:
        """Read these words or signs."""
        if not self.took(*words):
            raise self._unexpected(f"expected {' '.join(words).upper()}")

    def name(self) -> str:
        """Read a name, plain or in backticks."""
        if self.at_end or self._tokens[self._at].kind not in ("word", "quoted"):
            raise self._unexpected("expected a name")
        return self._next().text

    def text(self) -> str:
        """Read text in quotes."""
        if self.at_end or self._tokens[self._at].kind != "text":
            raise self._unexpected("expected text in quotes")
        return self._next().text

    def number(self) -> str:
        """Read a number."""
        if self.at_end or self._tokens[self._at].kind != "number":
            raise self._unexpected("expected a number")
        return self._next().text

    def _next(self) -> Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _unexpected(self, expected: str = "") -> RefusedError:
        found = "its end" if self.at_end else repr(self._tokens[self._at].text)
        count = [self._tokens.count(Token("sign", bracket)) for bracket in "()[]"]
        kind = UnfinishedError if self.at_end or count[::2] != count[1::2] else RefusedError
        return kind(f"{expected or 'not understood'} at {found}")

    def _either(self) -> Node:
        return self._chain("or", lambda: self._chain("and", self._negated))

    def _chain(self, sign: str, part: Callable[[], Node]) -> Node:
        parts = [part()]
        while self.took(sign):
            parts.append(part())
        return parts[0] if len(parts) == 1 else Call(sign, tuple(parts))

    def _negated(self) -> Node:
        return Call("not", (self._negated(),)) if self.took("not") or self.took("!") else self._predicate()

    def _predicate(self) -> Node:
        value = self._compared()
        while True:
            found = self._predicate_of(value)
            if found is None:
                return value
            value = found

    def _predicate_of(self, value: Node) -> Node | None:
        if self.took("is"):
            negated = self.took("not")
            if self.took("distinct", "from"):
                found: Node = Call("not", (Call("<=>", (value, self._compared())),))
            elif self.took("true") or self.took("false"):
                wanted = Literal("boolean", self._tokens[self._at - 1].text.lower())
                found = Call("<=>", (value, wanted))
            else:
                self.need("null")
                found = Call("isnull", (value,))
        else:
            start = self._at
            negated = self.took("not")
            if self.took("between"):
                low = self._compared()
                self.need("and")
                found = Call("and", (Call(">=", (value, low)), Call("<=", (value, self._compared()))))
            elif self.took("in"):
                self.need("(")
                found = Call("in", (value, *self._arguments()))
            else:
                self._at = start
                return None
        return Call("not", (found,)) if negated else found

    def _compared(self) -> Node:
        value = self._added()
        while not self.at_end and self._tokens[self._at].text in (
            "=",
            "==",
            "<=>",
            "<>",
            "!=",
            "<",
            "<=",
            ">",
            ">=",
        ):
            if self._tokens[self._at].kind != "sign":
                break
            sign = self._next().text
            value = Call(_COMPARED.get(sign, sign), (value, self._added()))
        return value

    def _added(self) -> Node:
        return self._left(("+", "-", "||"), lambda: self._left(("*", "/", "%"), self._signed))

    def _left(self, signs: tuple[str, ...], part: Callable[[], Node]) -> Node:
        value = part()
        while (
            not self.at_end and self._tokens[self._at].kind == "sign" and self._tokens[self._at].text in signs
        ):
            sign = self._next().text
            value = Call("concat" if sign == "||" else sign, (value, part()))
        return value

    def _signed(self) -> Node:
        if self.took("+"):
            return self._signed()
        if not self.took("-"):
            return self._part()
        if not self.at_end and self._tokens[self._at].kind == "number":
            return Literal("number", "-" + self._next().text)
        return Call("negative", (self._signed(),))

    def _part(self) -> Node:
        value = self._primary()
        while True:
            if self.took("["):
                value = Call("[]", (value, self._either()))
                self.need("]")
            elif self.took("."):
                value = Field(value, self.name())
            else:
                return value

    def _primary(self) -> Node:
        if self.at_end:
            raise self._unexpected("expected a value")
        if self.took("("):
            value = self._either()
            self.need(")")
            return value
        kind, text = self._tokens[self._at]
        if kind in ("number", "text"):
            return Literal(kind, self._next().text)
        if kind == "word":
            return self._word(text.lower())
        if kind == "quoted":
            return self._name()
        raise self._unexpected()

    def _word(self, word: str) -> Node:
        if self.took("null"):
            return Literal("null", word)
        if word in ("true", "false"):
            self._at += 1
            return Literal("boolean", word)
        if self.took("case"):
            return self._case()
        if self.took("cast", "("):
            value = self._either()
            self.need("as")
            kind = self.type_name()
            self.need(")")
            return Cast(value, kind)
        is_dated = word in _DATED and self._at + 1 < len(self._tokens)
        if is_dated and self._tokens[self._at + 1].kind == "text":
            self._at += 2
            return Literal(word, self._tokens[self._at - 1].text)
        if word in _KEYWORDS:
            raise self._unexpected()
        if self._at + 1 < len(self._tokens) and self._tokens[self._at + 1] == ("sign", "("):
            self._at += 2
            return Call(word, self._arguments())
        return self._name()

    def _name(self) -> Node:
        parts = [self.name()]
        while self.took("."):
            parts.append(self.name())
        return Name(tuple(parts))

    def _arguments(self) -> tuple[Node, ...]:
        """After the opening bracket, to the closing one."""
        if self.took(")"):
            return ()
        found = [self._either()]
        while self.took(","):
            found.append(self._either())
        self.need(")")
        return tuple(found)

    def _case(self) -> Node:
        subject = None if self.took("when") else self._either()
        if subject is not None:
            self.need("when")
        branches = []
        while True:
            condition = self._either()
            self.need("then")
            compared = condition if subject is None else Call("=", (subject, condition))
            branches.append((compared, self._either()))
            if not self.took("when"):
                break
        otherwise = self._either() if self.took("else") else None
        self.need("end")
        return Case(tuple(branches), otherwise)

    def type_name(self) -> str:
        """Read a type without parts, such as `DECIMAL(10, 2)`."""
        name = self.name().upper()
        if not self.took("("):
            return name
        sizes = [self.number()]
        while self.took(","):
            sizes.append(self.number())
        self.need(")")
        return f"{name}({', '.join(sizes)})"


def nodes_of(tree: Node) -> Iterator[Node]:
    """The tree's nodes, itself first."""
    yield tree
    match tree:
        case Call(_, arguments):
            parts: Iterable[Node | None] = arguments
        case Case(branches, otherwise):
            parts = (*chain.from_iterable(branches), otherwise)
        case Cast(value) | Field(value):
            parts = (value,)
        case _:
            parts = ()
    for part in parts:
        if part is not None:
            yield from nodes_of(part)


def _tokens(text: str) -> list[Token]:
    found: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            # Raw text may end in a backslash.
            opens = text[at] in "'\"`" and (not found or found[-1].text.lower() != "r")
            kind = UnfinishedError if opens else RefusedError
            raise kind(f"not understood at {text[at : at + 20]!r}")
        at, group = match.end(), str(match.lastgroup)
        if group == "quoted":
            found.append(Token(group, match.group()[1:-1].replace("``", "`")))
        elif group == "text":
            if found and found[-1].kind == "text":
                raise RefusedError("two texts without a sign between them: escape a quote as \\'")
            found.append(Token(group, re.sub(r"\\(.)", _unescaped, match.group()[1:-1], flags=re.DOTALL)))
        elif group != "space":
            found.append(Token(group, match.group()))
    return found


def _unescaped(match: re.Match[str]) -> str:
    letter = match.group(1)
    if letter not in _ESCAPES:
        raise RefusedError(f"the escape \\{letter} in a text: write the character itself")
    return _ESCAPES[letter]
