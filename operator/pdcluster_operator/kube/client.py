"""Reads and writes of single objects, over the official client's transport.

Shell. Paths are ours (``resources.py``): nothing is discovered, nothing cached. Rejections become
our errors here and nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import aiohttp
from kubernetes.aio.client import ApiClient, ApiException

from pdcluster_api.labels import CLUSTER_LABEL
from pdcluster_operator.errors import ClusterApiError, MissingError
from pdcluster_operator.kube.answers import error_of
from pdcluster_operator.kube.resources import RESOURCES
from pdcluster_operator.manifests.labels import FIELD_MANAGER
from pdcluster_operator.manifests.objects import Manifest, ObjectKey

__all__ = ["KubeClient"]

_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_JSON: Final = "application/json"
_TIMEOUT: Final = aiohttp.ClientTimeout(total=15.0)
Raw = dict[str, object]


class KubeClient:
    """Objects of the API, one at a time.

    Args:
        api: The official client: addresses, certificates, tokens and their renewal.
    """

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    async def get(self, key: ObjectKey, namespace: str) -> Raw | None:
        """Read one object; None where it is not there.

        Raises:
            OperatorError: It could not be read.
        """
        try:
            return await self._request("GET", RESOURCES[key.kind].path(namespace, key.name))
        except MissingError:
            return None

    async def list_ours(self, kind: str, namespace: str = "") -> tuple[list[Raw], str]:
        """List all objects of a kind that are ours, and the list's resource version.

        Args:
            kind: The kind.
            namespace: Where; "" for everywhere.

        Raises:
            OperatorError: They could not be read.
        """
        resource = RESOURCES[kind]
        query = [] if kind == "PDCluster" else [("labelSelector", CLUSTER_LABEL)]
        answer = await self._request("GET", resource.collection(namespace), query=query)
        items, metadata = answer.get("items"), answer.get("metadata")
        listed = items if isinstance(items, list) else []
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else ""
        # Objects of a list come without their kind.
        named = [{**each, "apiVersion": resource.api_version, "kind": kind} for each in listed]
        return named, str(version)

    async def list_events(self, namespace: str, pod: str) -> list[Raw]:
        """Read the Events about one pod.

        Raises:
            OperatorError: They could not be read.
        """
        query = [("fieldSelector", f"involvedObject.kind=Pod,involvedObject.name={pod}")]
        answer = await self._request("GET", RESOURCES["Event"].path(namespace), query=query)
        items = answer.get("items")
        return [each for each in items if isinstance(each, dict)] if isinstance(items, list) else []

    async def apply(self, manifest: Manifest, namespace: str, *, uid: str) -> Raw:
        """Apply a manifest as the one field manager that we are.

        Args:
            manifest: What to apply.
            namespace: Where.
            uid: The uid that was observed: the server rejects any other object of the name.

        Raises:
            OperatorError: It was rejected.
        """
        body: Mapping[str, object] = manifest
        metadata = manifest["metadata"]
        assert isinstance(metadata, Mapping)
        if uid:
            body = {**manifest, "metadata": {**metadata, "uid": uid}}
        path = RESOURCES[str(manifest["kind"])].path(namespace, str(metadata["name"]))
        return await self._request("PATCH", path, body, content=_APPLY, query=_FORCED)

    async def apply_status(
        self, key: ObjectKey, namespace: str, status: Mapping[str, object]
    ) -> Raw:
        """Apply the status subresource.

        Raises:
            OperatorError: It was rejected.
        """
        resource = RESOURCES[key.kind]
        body = {
            "apiVersion": resource.api_version,
            "kind": key.kind,
            "metadata": {"name": key.name, "namespace": namespace},
            "status": status,
        }
        path = resource.path(namespace, key.name, "status")
        return await self._request("PATCH", path, body, content=_APPLY, query=_FORCED)

    async def patch(
        self, key: ObjectKey, namespace: str, content: Mapping[str, object], *, uid: str
    ) -> Raw:
        """Merge some fields into an object.

        Raises:
            OperatorError: It was rejected.
        """
        metadata = content.get("metadata", {})
        assert isinstance(metadata, Mapping)
        body = {**content, "metadata": {**metadata, "uid": uid}}
        path = RESOURCES[key.kind].path(namespace, key.name)
        query = [("fieldManager", FIELD_MANAGER)]
        return await self._request("PATCH", path, body, content=_MERGE, query=query)

    async def delete(self, key: ObjectKey, namespace: str, *, uid: str) -> None:
        """Delete one object, and in the background what it owns; one that is gone is no error.

        Raises:
            OperatorError: It was rejected.
        """
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        try:
            await self._request("DELETE", RESOURCES[key.kind].path(namespace, key.name), body)
        except MissingError:
            return

    async def create_event(self, namespace: str, event: Mapping[str, object]) -> None:
        """Write one Event.

        Raises:
            OperatorError: It was rejected.
        """
        await self._request("POST", RESOURCES["Event"].path(namespace), event)

    async def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        content: str = _JSON,
        query: list[tuple[str, str]] | None = None,
    ) -> Raw:
        what = f"{method} {path}"
        try:
            request = await self._api.param_serialize(
                method,
                path,
                query_params=list(query or []),
                header_params={"Accept": _JSON, "Content-Type": content},
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = await self._api.call_api(*request, _request_timeout=_TIMEOUT)
            data = await answer.read()  # type: ignore[no-untyped-call]
            status = answer.status
            header = answer.getheaders()  # type: ignore[no-untyped-call]
        except ApiException as error:
            text = error.body.decode() if isinstance(error.body, bytes) else str(error.body or "")
            headers = error.headers or {}
            raise error_of(
                what, int(error.status or 500), text, headers.get("Retry-After")
            ) from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ClusterApiError(f"{what}: {str(error) or type(error).__name__}") from error
        text = data.decode() if isinstance(data, bytes) else str(data)
        if not HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            raise error_of(what, status, text, header.get("Retry-After"))
        parsed = json.loads(text) if text else {}
        assert isinstance(parsed, dict)
        return parsed


_FORCED: Final = [("fieldManager", FIELD_MANAGER), ("force", "true")]
