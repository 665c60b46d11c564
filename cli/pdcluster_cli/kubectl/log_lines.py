"""Lines of several pods' logs: cutting, naming, going on where a stream broke off.

Pure. Every line is asked for with its timestamp, which is taken off again: it tells which lines of
a resumed stream were shown already, since the API resumes at whole seconds.

Source: kubelet's log writer (kuberuntime/logs): ``2006-01-02T15:04:05.000000000Z07:00 line``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from pdcluster_cli.kubectl.options import ALL_LINES, LogOptions
from pdcluster_cli.kubectl.raw import Raw, at, maps_at, text_at
from pdcluster_operator.manifests.labels import COMPONENT_LABEL, ENGINE, PROXY

__all__ = ["LINE_MAX_BYTES", "LineCutter", "Source", "due_sources", "log_query", "sources"]

LINE_MAX_BYTES: Final = 1024 * 1024
"""A longer line is given in pieces."""

_STAMPED: Final = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+(?:Z|[+-]\d\d:\d\d)) ?")


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Source:
    """One container's log.

    Attributes:
        pod: Name of the pod.
        container: Name of the container.
        id: Which of the pod's containers of that name, past ones included; empty while there is
            none.
        is_running: Whether it may log more.
    """

    pod: str
    container: str
    id: str = ""
    is_running: bool = False


def sources(pods: Iterable[Raw]) -> tuple[Source, ...]:
    """Our container of each pod, in the order of the pods' names."""
    return tuple(sorted(source for pod in pods for source in _source(pod)))


def _source(pod: Raw) -> Iterator[Source]:
    component = text_at(pod, "metadata", "labels", COMPONENT_LABEL)
    # Containers have the names of their components; others are the user's own.
    if component not in {ENGINE, PROXY}:
        return
    mine = next(
        (
            each
            for each in maps_at(pod, "status", "containerStatuses")
            if text_at(each, "name") == component
        ),
        {},
    )
    yield Source(
        pod=text_at(pod, "metadata", "name"),
        container=component,
        id=text_at(mine, "containerID"),
        is_running=at(mine, "state", "running") is not None,
    )


def due_sources(
    found: Iterable[Source], *, open_ids: Collection[str], ended_ids: Collection[str]
) -> tuple[Source, ...]:
    """Logs to begin or to resume following.

    Args:
        found: What there is.
        open_ids: Containers whose streams are open.
        ended_ids: Containers whose logs were read to their end; one that runs still is resumed.
    """
    return tuple(
        source
        for source in found
        if source.id
        and source.id not in open_ids
        and (source.is_running or source.id not in ended_ids)
    )


def log_query(
    source: Source, options: LogOptions, *, is_new: bool = False, since: str = ""
) -> tuple[tuple[str, str], ...]:
    """What to ask of the API.

    Args:
        source: Whose log.
        options: What the user asked for.
        is_new: The container came while others were followed: all of it is wanted.
        since: Timestamp of the last line that was shown; what comes after it is wanted.
    """
    query = [("container", source.container), ("timestamps", "true")]
    if options.follow:
        query.append(("follow", "true"))
    if options.previous:
        query.append(("previous", "true"))
    if since:
        query.append(("sinceTime", re.sub(r"\.\d+", "", since)))
    elif options.tail != ALL_LINES and not is_new:
        query.append(("tailLines", str(options.tail)))
    return tuple(query)


class LineCutter:
    """Cuts one pod's stream into named lines.

    Args:
        pod: What stands before each line.
        since: Timestamp of the last line that was shown; it and earlier ones are left out.
    """

    def __init__(self, pod: str, *, since: str = "") -> None:
        self._head = f"[{pod}] ".encode()
        # This is all the mutable state.
        self._rest = b""
        self._last = self._since = since.encode()

    @property
    def last(self) -> str:
        """Timestamp of the last line; empty before the first."""
        return self._last.decode()

    def feed(self, part: bytes) -> bytes:
        """Take a part of the stream; give the lines that it completes."""
        *lines, self._rest = (self._rest + part).split(b"\n")
        if len(self._rest) > LINE_MAX_BYTES:
            lines.append(self._rest)
            self._rest = b""
        return b"".join(self._shown(line) for line in lines)

    def end(self) -> bytes:
        """Give what is left of a stream that has ended: a line without its end."""
        rest, self._rest = self._rest, b""
        return self._shown(rest) if rest else b""

    def _shown(self, line: bytes) -> bytes:
        stamped = _STAMPED.match(line)
        if stamped is not None:
            # All stamps of one node have one form and one zone: they compare as words.
            if stamped[1] <= self._since:
                return b""
            self._last = stamped[1]
            line = line[stamped.end() :]
        return self._head + line.removesuffix(b"\r") + b"\n"
