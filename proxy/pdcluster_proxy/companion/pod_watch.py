"""Discovery on Kubernetes: watches the pods of one PDCluster.

Shell around the official client's transport. While the API server is away the last known endpoints
stay in force; afterwards everything is listed anew, so that nothing that happened meanwhile is
missed. Rights: list and watch pods of the namespace, nothing else.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
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

_Raw = dict[str, object]


class _WatchOverError(Exception):
    """The watch can't go on from where it was; list anew."""


class PodDiscovery:
    """Follows one cluster's pods.

    Args:
        api: The official client.
        where: Whose pods.
        watcher: Hears of changes.
    """

    def __init__(
        self, api: ApiClient, where: KubernetesDiscovery, watcher: DiscoveryWatcher
    ) -> None:
        self._api = api
        self._path = f"/api/v1/namespaces/{where.namespace}/pods"
        self._selector = f"{CLUSTER_LABEL}={where.cluster},{ROLE_LABEL}"
        self._watcher = watcher
        # This is all the mutable state.
        self._pods: dict[str, _Raw] = {}
        self._told: EndpointsFile | None = None

    async def run(self) -> None:
        """Follow for ever."""
        failures = 0
        while True:
            try:
                version = await self._list()
                failures = 0
                while True:
                    version = await self._watch(version)
            except _WatchOverError:
                continue
            except (TimeoutError, aiohttp.ClientError, ApiException, OSError, ValueError) as error:
                failures += 1
                reason = str(error) or type(error).__name__
                if failures == 1:
                    _LOG.warning("discovery.failed", extra={"path": self._path, "reason": reason})
                self._watcher.discovery_failed(reason)
                await asyncio.sleep(min(RETRY_MAX_S, RETRY_FIRST_S * 2.0 ** min(failures - 1, 10)))

    async def _list(self) -> str:
        answer = await self._request([])
        listed = json.loads(await answer.read())
        self._pods = {pod["metadata"]["name"]: pod for pod in listed["items"]}
        self._tell()
        return str(listed["metadata"]["resourceVersion"])

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
                kind, pod = event["type"], event["object"]
                if kind == "ERROR" or not isinstance(pod, dict):
                    raise _WatchOverError
                version = str(pod["metadata"]["resourceVersion"])
                if kind == "BOOKMARK":
                    continue
                name = str(pod["metadata"]["name"])
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
        endpoints = endpoints_of_pods(self._pods.values())
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
            raise _WatchOverError
        if response.status != HTTPStatus.OK:
            text = (await response.read())[:300].decode(errors="replace")
            raise ApiException(status=response.status, reason=text)
        return response


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[_Raw]:
    async for line in answer.content:
        if line.strip():
            event = json.loads(line)
            if not isinstance(event, dict) or "type" not in event:
                raise _WatchOverError
            yield event
