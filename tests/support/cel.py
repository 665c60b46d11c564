"""As much of CEL as the rules use, and an API server's way with defaults and rules.

A small evaluator, so that the two forms of each rule can be held against one another without a
Kubernetes: literals, lists, ``has``, ``int``, members, indices, ``all``, ``exists``, ``matches``,
``startsWith``, ``split``, ``size``, ``in``, arithmetic, comparison and logic.

Source:
    The CEL language definition; operators by precedence, ``/`` truncates, ``matches`` is RE2's
    unanchored search.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+)|(?P<text>'[^']*')|(?P<word>[A-Za-z_]\w*)"
    r"|(?P<sign>&&|\|\||==|!=|<=|>=|[-+*/<>!().,\[\]]))"
)
_BINARY: tuple[dict[str, Callable[[Any, Any], Any]], ...] = (
    {"||": lambda a, b: a or b},
    {"&&": lambda a, b: a and b},
    {
        "==": lambda a, b: a == b,
        "!=": lambda a, b: a != b,
        "<=": lambda a, b: a <= b,
        ">=": lambda a, b: a >= b,
        "<": lambda a, b: a < b,
        ">": lambda a, b: a > b,
        "in": lambda a, b: a in b,
    },
    {"+": lambda a, b: a + b, "-": lambda a, b: a - b},
    {"*": lambda a, b: a * b, "/": lambda a, b: a // b},
)
_METHODS: dict[str, Callable[..., Any]] = {
    # RE2's `$` is the text's end; Python's also matches before a last line break.
    "matches": lambda text, pattern: re.search(pattern.replace("$", r"\Z"), text) is not None,
    "startsWith": str.startswith,
    "split": str.split,
    "size": len,
}


class _NoSuchKeyError(Exception):
    """A member that is not there: ``no such key`` in CEL."""


class _Parser:
    """Parses to closures that take the variables; short circuits like CEL."""

    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        at = 0
        while at < len(text.rstrip()):
            match = _TOKEN.match(text, at)
            assert match is not None, text[at:]
            self.tokens.append(match.group().strip())
            at = match.end()
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, *wanted: str) -> str:
        token = self.peek()
        assert not wanted or token in wanted, f"{token!r} instead of {wanted}"
        self.at += 1
        return token

    def binary(self, level: int = 0) -> Any:
        if level == len(_BINARY):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek() in _BINARY[level]:
            sign = self.take()
            left = self._joined(sign, left, self.binary(level + 1), _BINARY[level][sign])
        return left

    @staticmethod
    def _joined(sign: str, left: Any, right: Any, apply: Callable[[Any, Any], Any]) -> Any:
        if sign == "||":
            return lambda scope: left(scope) or right(scope)
        if sign == "&&":
            return lambda scope: left(scope) and right(scope)
        return lambda scope: apply(left(scope), right(scope))

    def unary(self) -> Any:
        if self.peek() == "!":
            self.take()
            inner = self.unary()
            return lambda scope: not inner(scope)
        return self.postfix()

    def postfix(self) -> Any:
        value = self.primary()
        while self.peek() in {".", "["}:
            value = self.index(value) if self.peek() == "[" else self.member(value)
        return value

    def index(self, value: Any) -> Any:
        self.take("[")
        key = self.binary()
        self.take("]")
        return lambda scope: value(scope)[key(scope)]

    def member(self, value: Any) -> Any:
        self.take(".")
        name = self.take()
        if self.peek() != "(":
            return lambda scope: _member_of(value(scope), name)
        self.take("(")
        if name in {"all", "exists"}:
            return self.macro(value, name)
        arguments = self.arguments()
        method = _METHODS[name]
        return lambda scope: method(value(scope), *(one(scope) for one in arguments))

    def macro(self, value: Any, name: str) -> Any:
        variable = self.take()
        self.take(",")
        body = self.binary()
        self.take(")")
        over = all if name == "all" else any
        return lambda scope: over(body({**scope, variable: item}) for item in value(scope))

    def arguments(self) -> list[Any]:
        found = []
        while self.peek() not in {")", "]"}:
            found.append(self.binary())
            if self.peek() == ",":
                self.take()
        self.take()
        return found

    def primary(self) -> Any:
        token = self.take()
        if token == "(":
            inner = self.binary()
            self.take(")")
            return inner
        if token == "[":
            items = self.arguments()
            return lambda scope: [item(scope) for item in items]
        if token[0] == "'":
            return lambda _scope: token[1:-1]
        if token.isdigit():
            return lambda _scope: int(token)
        if self.peek() == "(" and token in {"has", "int"}:
            self.take("(")
            [argument] = self.arguments()
            return (
                (lambda scope: _is_there(argument, scope))
                if token == "has"
                else (lambda scope: int(argument(scope)))
            )
        return lambda scope: scope[token]


def _member_of(value: Any, name: str) -> Any:
    if name not in value:
        raise _NoSuchKeyError(name)
    return value[name]


def _is_there(argument: Any, scope: Mapping[str, Any]) -> bool:
    try:
        argument(scope)
    except _NoSuchKeyError:
        return False
    return True


def holds(expression: str, node: object) -> bool:
    """Evaluate a rule with ``self`` as the node."""
    parser = _Parser(expression)
    rule = parser.binary()
    assert parser.at == len(parser.tokens), parser.tokens[parser.at :]
    result = rule({"self": node})
    assert isinstance(result, bool)
    return result


def with_defaults(schema: Mapping[str, Any], node: Any) -> Any:
    """Fill in defaults as an API server does: the parent's first, then its children's."""
    if isinstance(node, dict):
        filled = dict(node)
        for name, child in schema.get("properties", {}).items():
            if name not in filled and "default" in child:
                filled[name] = child["default"]
            if name in filled:
                filled[name] = with_defaults(child, filled[name])
        return filled
    if isinstance(node, list):
        return [with_defaults(schema.get("items", {}), item) for item in node]
    return node


def broken_messages(schema: Mapping[str, Any], node: Any) -> Iterator[str]:
    """Yield the message of every rule that a defaulted node and those below it break."""
    for validation in schema.get("x-kubernetes-validations", []):
        if "oldSelf" not in validation["rule"] and not holds(validation["rule"], node):
            yield validation["message"]
    if isinstance(node, dict):
        for name, child in schema.get("properties", {}).items():
            if name in node:
                yield from broken_messages(child, node[name])
    elif isinstance(node, list):
        for item in node:
            yield from broken_messages(schema.get("items", {}), item)
