"""Discovery on Kubernetes: watches the pods of one PDCluster.

Shell around the official client's transport. While the API server is away the last known endpoints
stay in force; afterwards everything is listed anew, so that nothing that happened meanwhile is
missed. However a watch ends, and however often, requests come at most twice a second, and ever
rarer while they fail. Rights: list and watch pods of the namespace, nothing else.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import aiohttp
from kubernetes.aio.client import ApiClient, ApiException

from pdcluster_api.labels import CLUSTER_LABEL, ROLE_LABEL
from pdcluster_proxy.companion.pods import endpoints_of_pods

if TYPE_CHECKING:
    from pdcluster_api.proxy_config import EndpointsFile, KubernetesDiscovery
    from pdcluster_proxy.companion.discovery import DiscoveryWatcher

__all__ = ["PodDiscovery"]

_LOG = logging.getLogger(__name__)

WATCH_S: Final = 290
"""One watch request; the API server ends it after so many seconds and it is made anew."""

SILENCE_S: Final = 75.0
"""A bookmark comes every minute: a longer silence is a dead connection."""

LIST_TIMEOUT_S: Final = 10.0
RETRY_FIRST_S: Final = 0.5
RETRY_MAX_S: Final = 10.0
STEADY_S: Final = 30.0
"""Who has followed the pods this long does not fail again and again."""

MAX_EVENT_BYTES: Final = 16 * 1024 * 1024
"""An object of the API server is below 2 MiB."""

_Raw = dict[str, object]


class _WatchOverError(Exception):
    """The watch can't go on from where it was; list anew."""


class PodDiscovery:
    """Follows one cluster's pods.

    Args:
        api: The official client.
        where: Whose pods.
        watcher: Hears of changes.
        retry_s: The first pause after a watch has ended or a request has failed.
    """

    def __init__(
        self,
        api: ApiClient,
        where: KubernetesDiscovery,
        watcher: DiscoveryWatcher,
        *,
        retry_s: float = RETRY_FIRST_S,
    ) -> None:
        self._api = api
        self._path = f"/api/v1/namespaces/{where.namespace}/pods"
        self._selector = f"{CLUSTER_LABEL}={where.cluster},{ROLE_LABEL}"
        self._watcher = watcher
        self._retry_s = retry_s
        # This is all the mutable state.
        self._pods: dict[str, _Raw] = {}
        self._told: EndpointsFile | None = None
        self._faults: tuple[str, ...] = ()

    async def run(self) -> None:
        """Follow for ever."""
        failures = 0
        while True:
            began, reason = time.monotonic(), ""
            try:
                await self._follow()
            except _WatchOverError:
                pass
            except (TimeoutError, aiohttp.ClientError, ApiException, OSError, ValueError) as error:
                reason = str(error) or type(error).__name__
            if time.monotonic() - began > STEADY_S:
                failures = 0
            failures += 1
            if reason:
                if failures == 1:
                    _LOG.warning("discovery.failed", extra={"path": self._path, "reason": reason})
                self._watcher.discovery_failed(reason)
            await asyncio.sleep(min(RETRY_MAX_S, self._retry_s * 2.0 ** min(failures - 1, 10)))

    async def _follow(self) -> None:
        """List the pods, then watch them for as long as it can be gone on from there.

        Raises:
            _WatchOverError: It cannot; list anew.
            Exception: A request has failed, or its answer is none of an API server.
        """
        version = await self._list()
        while True:
            began = time.monotonic()
            version = await self._watch(version)
            # A server, or something before it, may end each watch as soon as it has begun.
            await asyncio.sleep(max(0.0, began + self._retry_s - time.monotonic()))

    async def _list(self) -> str:
        answer = await self._request([])
        listed = json.loads(await answer.read())
        items = listed.get("items") if isinstance(listed, dict) else None
        if not isinstance(items, list):
            raise ValueError("The API server's list of pods has no items.")  # noqa: TRY004 (an answer's fault)
        self._pods = {_metadata(pod, "name"): pod for pod in items}
        self._tell()
        return _metadata(listed, "resourceVersion")

    async def _watch(self, version: str) -> str:
        """Follow one watch request to its end; give the version to go on from."""
        query = [
            ("watch", "true"),
            ("resourceVersion", version),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", str(WATCH_S)),
        ]
        answer = await self._request(query)
        try:
            async for event in _events(answer):
                kind, pod = event.get("type"), event.get("object")
                if kind == "ERROR" or not isinstance(pod, dict):
                    raise _WatchOverError
                version = _metadata(pod, "resourceVersion")
                if kind == "BOOKMARK":
                    continue
                name = _metadata(pod, "name")
                if kind == "DELETED":
                    self._pods.pop(name, None)
                else:
                    self._pods[name] = pod
                self._tell()
        finally:
            answer.close()
        return version

    def _tell(self) -> None:
        """Pass on what has changed: most changes of a pod do not concern us."""
        endpoints, faults = endpoints_of_pods(self._pods.values())
        if faults != self._faults:
            self._faults = faults
            for fault in faults:
                _LOG.error("discovery.pod.unusable", extra={"path": self._path, "reason": fault})
                self._watcher.discovery_failed(fault)
        if endpoints != self._told:
            self._told = endpoints
            self._watcher.discovered(endpoints)

    async def _request(self, query: list[tuple[str, str]]) -> aiohttp.ClientResponse:
        request = await self._api.param_serialize(
            "GET",
            self._path,
            query_params=[("labelSelector", self._selector), *query],
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        is_watch = bool(query)
        answer = await self._api.call_api(
            *request,
            _request_timeout=(
                aiohttp.ClientTimeout(sock_read=SILENCE_S, connect=LIST_TIMEOUT_S)
                if is_watch
                else aiohttp.ClientTimeout(total=LIST_TIMEOUT_S)
            ),
        )
        response: aiohttp.ClientResponse = answer.response
        if response.status == HTTPStatus.GONE:
            response.close()
            raise _WatchOverError
        if response.status != HTTPStatus.OK:
            text = (await response.content.read(300)).decode(errors="replace")
            response.close()
            raise ApiException(status=response.status, reason=text)
        return response


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[_Raw]:
    """Cut a watch into its events; a pod's line may be longer than aiohttp's own lines."""
    rest = b""
    async for part in answer.content.iter_any():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.strip():
                event = json.loads(line)
                if not isinstance(event, dict):
                    raise _WatchOverError
                yield event
        if len(rest) > MAX_EVENT_BYTES:
            raise ValueError(f"An event of a watch is over {MAX_EVENT_BYTES} bytes.")


def _metadata(raw: object, key: str) -> str:
    """A field of an object's metadata.

    Raises:
        ValueError: It has none: no object of an API server.
    """
    metadata = raw.get("metadata") if isinstance(raw, Mapping) else None
    value = metadata.get(key) if isinstance(metadata, Mapping) else None
    if not isinstance(value, str):
        raise ValueError(f"An object of the API server has no metadata.{key}.")  # noqa: TRY004 (an answer's fault)
    return value
