"""YAML text as Kubernetes reads it: plain data, with the line of every field.

Pure. Differs from PyYAML's own loader where the API server does: dates and ``1:4`` are strings.
Keys that stand twice are rejected, since one of the two values would be dropped silently. Nulls are
rejected, since server-side apply rejects them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import yaml

from pdcluster_api.problems import Path, Problem

__all__ = ["Document", "read_documents"]

_TEXT_MAX_CHARS: Final = 1024 * 1024
_NODES_MAX: Final = 100_000
"""Aliases may multiply a small file into a huge document; past this many nodes it is rejected."""

_NULL: Final = "tag:yaml.org,2002:null"
_MERGE: Final = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """Resolves scalars as Kubernetes' YAML library does."""


# A copy, so that PyYAML's own table stays as it is.
_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag
        not in {
            "tag:yaml.org,2002:timestamp",
            "tag:yaml.org,2002:int",
            "tag:yaml.org,2002:float",
        }
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"^[-+]?(?:0|[1-9][0-9]*|0x[0-9a-fA-F]+|0o?[0-7]+|0b[01]+)$"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$"
        r"|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$"
    ),
    list("-+0123456789."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One document of a file.

    Attributes:
        data: Plain data: maps, lists, strings, numbers, booleans.
        line: Line on which it begins, from 1.
        lines: Line of every field, by path.
        problems: Keys that stand twice, nulls, and values JSON cannot hold.
    """

    data: object
    line: int
    lines: Mapping[Path, int]
    problems: tuple[Problem, ...]


@dataclass(slots=True)
class _Walk:
    """The one mutable state of a walk over a document's nodes."""

    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    num_nodes: int = 0

    def visit(self, node: yaml.Node, path: Path) -> None:
        self.num_nodes += 1
        if self.num_nodes > _NODES_MAX:
            return
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        if isinstance(node, yaml.MappingNode):
            self._visit_mapping(node, path)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.visit(item, (*path, index))
        elif node.tag == _NULL:
            self.problems.append(
                Problem(
                    path=path,
                    value="null",
                    message="nothing may be null; give it a value or remove the key",
                    line=line,
                )
            )

    def _visit_mapping(self, node: yaml.MappingNode, path: Path) -> None:
        seen: set[str] = set()
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == _MERGE:
                self.visit(value_node, path)
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(
                    Problem(path=path, message="a key must be a plain word", line=line)
                )
                continue
            key = str(key_node.value)
            if key in seen:
                self.problems.append(
                    Problem(
                        path=(*path, key),
                        message="stands twice; remove one of the two",
                        line=line,
                    )
                )
            seen.add(key)
            self.lines[(*path, key)] = line
            self.visit(value_node, (*path, key))


def read_documents(text: str) -> tuple[Document, ...] | Problem:
    """Read all documents of a YAML text; empty ones are left out.

    Returns:
        The documents, or the one problem that keeps the text from being read at all.
    """
    if len(text) > _TEXT_MAX_CHARS:
        return Problem(message=f"is longer than {_TEXT_MAX_CHARS} characters; split it")
    try:
        return _read(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        return Problem(
            message=f"is not YAML: {error.problem or error.context}"
            + (f" (column {mark.column + 1})" if mark is not None else ""),
            line=mark.line + 1 if mark is not None else None,
        )
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # YAMLError: a control character; ValueError: a number beyond Python's limit;
        # RecursionError: nested a thousand deep, or in itself.
        told = " ".join(str(error).split())
        return Problem(message=f"is not YAML that can be read: {told}")


def _read(text: str) -> tuple[Document, ...] | Problem:
    loader = _Loader(text)
    documents = []
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is None or node.tag == _NULL:
                continue
            walk = _Walk()
            walk.visit(node, ())
            if walk.num_nodes > _NODES_MAX:
                return Problem(
                    message=f"has more than {_NODES_MAX} values once aliases are filled in",
                    line=node.start_mark.line + 1,
                )
            documents.append(
                Document(
                    data=loader.construct_document(node),
                    line=node.start_mark.line + 1,
                    lines=walk.lines,
                    problems=tuple(walk.problems),
                )
            )
    finally:
        loader.dispose()
    return tuple(documents)
