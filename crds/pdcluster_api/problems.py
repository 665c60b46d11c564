"""What is wrong with a resource file, and where.

Pure. A problem names the field by its full path, the value, and the remedy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from typing_extensions import override

from pdcluster_lease.errors import ConfigurationError

__all__ = ["Path", "Problem", "ResourceError", "format_path"]

Path: TypeAlias = tuple[str | int, ...]
"""Steps from a document's root to a node: keys and list indices."""

_VALUE_MAX_CHARS = 80


def format_path(path: Path) -> str:
    """Write a path as people do: ``spec.prefill.args[0]``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        message: What is wrong and what to do.
        path: The field, or empty for the whole document.
        value: The value as it would stand in the file; None where there is none.
        line: Line of the field in the file, from 1; None where unknown.
    """

    message: str
    path: Path = ()
    value: str | None = None
    line: int | None = None

    @override
    def __str__(self) -> str:
        """Return ``path: value: message``, without the place in the file."""
        value = self.value
        if value is not None and len(value) > _VALUE_MAX_CHARS:
            value = value[:_VALUE_MAX_CHARS] + "..."
        parts = (format_path(self.path), value, self.message)
        return ": ".join(part for part in parts if part)


class ResourceError(ConfigurationError):
    """A resource file cannot be used.

    Attributes:
        source: Name of the file, for people.
        problems: Everything found wrong, in the file's order.
    """

    reason: ClassVar[str] = "InvalidSpec"

    def __init__(self, source: str, problems: tuple[Problem, ...]) -> None:
        super().__init__(
            "\n".join(
                f"{source}:{problem.line}: {problem}"
                if problem.line is not None
                else f"{source}: {problem}"
                for problem in problems
            )
        )
        self.source = source
        self.problems = problems
