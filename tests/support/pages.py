"""Commands and other blocks that the project's pages show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

__all__ = ["PAGES", "ROOT", "blocks", "commands", "commands_of", "words_of"]

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        *(ROOT / "charts").rglob("*.md"),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
    ]
)
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_SHELLS = {"sh", "bash", "console"}


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Language and text of each fenced block, without its indentation."""
    for indent, language, text in _FENCE.findall(page.read_text(encoding="utf-8")):
        lines = (line.removeprefix(indent) for line in text.splitlines())
        yield language, "\n".join(lines)


def commands_of(page: Path) -> Iterator[str]:
    """Each command of the shell blocks on one line, and those that stand in the text."""
    for language, block in blocks(page):
        if language in _SHELLS:
            yield from block.replace("\\\n", " ").splitlines()
    for span in re.findall(r"`([^`]+)`", _FENCE.sub("", page.read_text(encoding="utf-8"))):
        flat = " ".join(span.split())
        if re.match(r"(kubectl|helm|pdcluster|make|python -m|\.venv/bin/) ?", flat):
            yield flat


def words_of(command: str) -> list[str]:
    """The words of a command, without comment and without what comes behind an operator."""
    bare = re.sub(r"\s#.*", "", command).strip()
    try:
        words = shlex.split(bare)
    except ValueError:
        # A text that goes on in the next line: what stands before is enough.
        words = bare.split()
    for number, word in enumerate(words):
        if word in {"|", "&", "&&", ";", ">", "<", "<<EOF"}:
            return words[:number]
    return words


def commands(*programs: str) -> Iterator[tuple[Path, list[str]]]:
    """Every command of these programs, in whatever folder they lie; of all where none is named."""
    for page in PAGES:
        for command in commands_of(page):
            words = words_of(command)
            if words and (not programs or Path(words[0]).name in programs):
                yield page, words
