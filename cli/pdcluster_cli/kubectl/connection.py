"""From a kubeconfig to an API server that answers.

Shell. The only module of the command that knows the Kubernetes client; what it can't do becomes
one of our errors here.
"""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final

import aiohttp
import yaml
from kubernetes import aio
from kubernetes.aio.client import ApiClient, ApiException, Configuration

from pdcluster_cli.kubectl.answers import error_of
from pdcluster_cli.kubectl.errors import KubeconfigError, ServerError, UnreachableError
from pdcluster_cli.kubectl.options import Target, kubeconfig_files
from pdcluster_cli.kubectl.raw import Raw, text_at

__all__ = ["Connection", "connect"]

_TIMEOUT: Final = aiohttp.ClientTimeout(total=30.0, sock_connect=10.0)
_STREAM_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
_POD_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_ERROR_MAX_BYTES: Final = 64 * 1024
# What the client raises over a kubeconfig whose content is not what it expects.
_BROKEN: Final = (
    *(aio.config.ConfigException, OSError, yaml.YAMLError),
    *(ValueError, TypeError, AttributeError, KeyError),
)


class Connection:
    """One API server, seen by one user.

    Args:
        api: The official client: addresses, certificates, tokens.
        namespace: The one that is meant where none is named.
    """

    def __init__(self, api: ApiClient, namespace: str) -> None:
        self._api = api
        self.namespace = namespace

    async def get(self, path: str, query: Sequence[tuple[str, str]] = ()) -> Raw:
        """Read one object or one list.

        Raises:
            CliError: It can't be read.
        """
        async with self._answer(path, query, _TIMEOUT) as response:
            text = await response.text()
        try:
            parsed = json.loads(text)
        except ValueError:
            parsed = None
        if not isinstance(parsed, Mapping):
            raise ServerError(f"{path}: what answers is no API server; check the kubeconfig")
        return parsed

    async def stream(
        self, path: str, query: Sequence[tuple[str, str]] = ()
    ) -> AsyncIterator[bytes]:
        """Read an answer as it comes.

        Raises:
            CliError: It can't be read, or breaks off.
        """
        async with self._answer(path, query, _STREAM_TIMEOUT) as response:
            async for part in response.content.iter_any():
                yield part

    @contextlib.asynccontextmanager
    async def _answer(
        self, path: str, query: Sequence[tuple[str, str]], limits: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        host = self._api.configuration.host
        try:
            request = await self._api.param_serialize(
                "GET",
                path,
                query_params=list(query),
                header_params={"Accept": "application/json, */*"},
                auth_settings=["BearerToken"],
            )
            answer = await self._api.call_api(*request, _request_timeout=limits)
            response: aiohttp.ClientResponse = answer.response
            try:
                if response.status != HTTPStatus.OK:
                    said = await response.content.read(_ERROR_MAX_BYTES)
                    raise error_of(path, response.status, said.decode(errors="replace"))
                yield response
            finally:
                response.close()
        except (aiohttp.ClientConnectorCertificateError, ssl.SSLError) as error:
            raise UnreachableError(
                f"{host} can't be trusted ({error}); check certificate-authority in the kubeconfig"
            ) from error
        except ApiException as error:
            raise error_of(path, int(error.status or 0), str(error.body or error.reason)) from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise UnreachableError(
                f"the API server {host} does not answer ({_told(error)}); check the address in "
                "the kubeconfig and the network, or choose another --context"
            ) from error


def _told(error: Exception) -> str:
    return str(error) or ("timed out" if isinstance(error, TimeoutError) else type(error).__name__)


def _existing(files: Sequence[str]) -> list[str]:
    return [path for path in files if Path(path).expanduser().is_file()]


def _current_context(files: Sequence[str]) -> str | None:
    """The first file that names one wins, as in kubectl; the client lets the last one win."""
    for path in files:
        found = text_at(
            yaml.safe_load(Path(path).expanduser().read_text(encoding="utf-8")), "current-context"
        )
        if found:
            return found
    return None


@contextlib.asynccontextmanager
async def connect(target: Target, environ: Mapping[str, str]) -> AsyncIterator[Connection]:
    """Connect as kubectl would: by a kubeconfig, else as the pod that this runs in.

    Raises:
        KubeconfigError: There is no kubeconfig, or it can't be used.
    """
    files = kubeconfig_files(target.kubeconfig, environ)
    there = _existing(files)
    configuration = Configuration()
    # Each followed log is a connection; a limit would let the others wait for ever.
    configuration.connection_pool_maxsize = 0
    try:
        if there:
            loader = await aio.config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=":".join(there),
                context=target.context or _current_context(there),
                client_configuration=configuration,
                persist_config=False,
            )
            namespace = text_at(loader.current_context, "context", "namespace") or "default"
        elif "KUBERNETES_SERVICE_HOST" in environ and not target.kubeconfig and not target.context:
            aio.config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            namespace = _POD_NAMESPACE.read_text(encoding="utf-8").strip()
        else:
            raise KubeconfigError(
                f"there is no kubeconfig ({', '.join(files)}); set KUBECONFIG or name one with "
                "--kubeconfig"
            )
        api = ApiClient(configuration=configuration)
    except _BROKEN as error:
        raise KubeconfigError(
            f"the kubeconfig {':'.join(there) or 'of this pod'} can't be used: {error}; "
            "`kubectl config view` shows it"
        ) from error
    async with api:
        yield Connection(api, target.namespace or namespace)
