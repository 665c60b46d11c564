"""Reads the logs of several pods, once or for as long as they go on.

Shell around a port: whatever streams paths of the Kubernetes API.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, Protocol

from pdcluster_api.labels import CLUSTER_LABEL
from pdcluster_api.proxy_config import Role
from pdcluster_cli.kubectl.errors import (
    ClusterMissingError,
    NoPreviousLogError,
    NotStartedError,
    ObjectMissingError,
    ServerError,
    UnreachableError,
)
from pdcluster_cli.kubectl.fetching import Api, fetch_cluster, fetch_pods
from pdcluster_cli.kubectl.log_lines import LineCutter, Source, due_sources, log_query, sources
from pdcluster_cli.kubectl.options import LogOptions, Part
from pdcluster_operator.manifests.labels import engine_selector, proxy_selector, selector_text

__all__ = ["LOOK_S", "LogApi", "PodLogs", "selector_of"]

LOOK_S: Final = 2.0
"""Between two looks for pods that came, or whose container was started again."""


class LogApi(Api, Protocol):
    """Reads and streams of the Kubernetes API (``connection.py``)."""

    def stream(self, path: str, query: Sequence[tuple[str, str]] = ()) -> AsyncIterator[bytes]:
        """Read an answer as it comes."""


def selector_of(name: str, part: Part | None) -> str:
    """Which pods."""
    if part is None:
        return f"{CLUSTER_LABEL}={name}"
    if part is Part.PROXY:
        return selector_text(proxy_selector(name))
    return selector_text(engine_selector(name, Role(part.value)))


class PodLogs:
    """Logs of one PDCluster's pods.

    Args:
        api: The Kubernetes API.
        namespace: Where.
        name: The PDCluster.
        options: Which lines of which pods.
        write: Takes lines, each with its end.
        say: Takes what else is to be told.
        look_s: Between two looks, while following.
    """

    def __init__(
        self,
        api: LogApi,
        namespace: str,
        name: str,
        options: LogOptions,
        *,
        write: Callable[[bytes], None],
        say: Callable[[str], None],
        look_s: float = LOOK_S,
    ) -> None:
        self._api, self._namespace, self._name = api, namespace, name
        self._options, self._write, self._say, self._look_s = options, write, say, look_s
        # This is all the mutable state: what was said of whom, and by container what is followed.
        self._told: dict[str, str] = {}
        self._open: set[str] = set()
        self._ended: set[str] = set()
        self._since: dict[str, str] = {}

    async def read(self) -> bool:
        """Read each pod's log once, pod after pod.

        Returns:
            Whether there were pods, all have started and every log could be read.

        Raises:
            CliError: Pods can't be listed.
        """
        found = await self._find()
        if not found:
            self._say(f"{self._whose()} has no pods; `kubectl pdcluster status` says why")
            return False
        failures = 0
        for source in found:
            try:
                await self._stream(source, is_new=False)
            except NoPreviousLogError as error:
                self._say(f"[{source.pod}] {error}")  # Nothing is wrong with it.
            except NotStartedError as error:
                failures += 1
                self._say(f"[{source.pod}] {error}")
            except (ServerError, ObjectMissingError, UnreachableError) as error:
                failures += 1
                self._say(f"[{source.pod}] its log can't be read: {error}")
        return failures == 0

    async def follow(self) -> None:
        """Follow every pod's log, of those too that come later; ends with the PDCluster.

        Raises:
            CliError: Following can't go on.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._follow_all(tasks)
        except BaseExceptionGroup as group:
            # The first failure has ended all others; what it is matters, not where it came up.
            raise _first_of(group) from group

    async def _follow_all(self, tasks: asyncio.TaskGroup) -> None:
        is_first = True
        while True:
            found = await self._look()
            for source in due_sources(found, open_ids=self._open, ended_ids=self._ended):
                self._open.add(source.id)
                tasks.create_task(self._follow_one(source, is_new=not is_first))
            is_first = is_first and not found
            if not found and not self._open and await self._is_gone():
                self._say(f"PDCluster {self._name} is gone")
                return
            await asyncio.sleep(self._look_s)

    async def _look(self) -> tuple[Source, ...]:
        try:
            found = await self._find()
        except (UnreachableError, ServerError) as error:
            self._say_once("", f"{error}; trying again")
            return ()
        self._say_once("", "" if found else f"{self._whose()} has no pods; waiting for them")
        return found

    async def _is_gone(self) -> bool:
        try:
            await fetch_cluster(self._api, self._namespace, self._name)
        except ClusterMissingError:
            return True
        except (UnreachableError, ServerError):
            return False
        return False

    async def _find(self) -> tuple[Source, ...]:
        selector = selector_of(self._name, self._options.part)
        return sources(await fetch_pods(self._api, self._namespace, selector))

    async def _follow_one(self, source: Source, *, is_new: bool) -> None:
        try:
            await self._stream(source, is_new=is_new)
            self._ended.add(source.id)
        except ObjectMissingError:
            self._ended.add(source.id)  # The pod is gone.
        except UnreachableError:
            # Whether the server answers at all is told by the next look.
            self._say_once(source.pod, f"[{source.pod}] its log broke off; it is resumed")
        except NotStartedError as error:
            self._say_once(source.pod, f"[{source.pod}] {error}")
        except ServerError as error:
            self._say_once(source.pod, f"[{source.pod}] its log can't be followed: {error}")
        finally:
            self._open.discard(source.id)

    async def _stream(self, source: Source, *, is_new: bool) -> None:
        since = self._since.get(source.id, "") if source.id else ""
        cutter = LineCutter(source.pod, since=since)
        path = f"/api/v1/namespaces/{self._namespace}/pods/{source.pod}/log"
        query = log_query(source, self._options, is_new=is_new, since=since)
        try:
            async for part in self._api.stream(path, query):
                self._told.pop(source.pod, None)
                self._write(cutter.feed(part))
        finally:
            self._since[source.id] = cutter.last
        self._write(cutter.end())

    def _say_once(self, topic: str, text: str) -> None:
        if text and text != self._told.get(topic):
            self._say(text)
        self._told[topic] = text

    def _whose(self) -> str:
        part = "" if self._options.part is None else f" ({self._options.part.value})"
        return f"PDCluster {self._name}{part}"


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first
