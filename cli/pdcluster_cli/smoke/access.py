"""The Kubernetes API for one kind, and a cluster's own address, with the standard library alone.

Shell. In a pod: its account's token is read for each request, because it is renewed.
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path

from pdcluster_api import defaults
from pdcluster_cli.smoke.story import Answer, AnswerError, ApiError, read_answer

__all__ = ["Access", "NotConnectedError", "ask"]

_TIMEOUT_S = 15.0


class NotConnectedError(ApiError):
    """Nothing was sent: trying again is safe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """PDClusters of one namespace.

    Attributes:
        server: Address of the API server.
        token_file: The account's token.
        ca_file: Whom to trust.
        namespace: The namespace.
    """

    server: str
    token_file: Path
    ca_file: Path
    namespace: str

    def get(self, name: str) -> dict[str, object] | None:
        """Read one PDCluster; None where there is none.

        Raises:
            ApiError: It could not be read.
        """
        return self._request("GET", name)

    def create(self, raw: Mapping[str, object]) -> None:
        """Make a PDCluster.

        Raises:
            ApiError: It could not be made.
        """
        self._request("POST", "", raw)

    def delete(self, name: str) -> None:
        """Delete a PDCluster after what belongs to it; one that is gone is no error.

        Raises:
            ApiError: It could not be deleted.
        """
        self._request("DELETE", name, {"propagationPolicy": "Foreground"})

    def _request(
        self, method: str, name: str, body: Mapping[str, object] | None = None
    ) -> dict[str, object] | None:
        path = f"/apis/{defaults.API_VERSION}/namespaces/{self.namespace}/pdclusters"
        request = urllib.request.Request(  # noqa: S310 - the scheme is the API server's
            f"{self.server}{path}/{name}" if name else f"{self.server}{path}",
            method=method,
            data=json.dumps(body).encode() if body is not None else None,
            headers={
                "Authorization": f"Bearer {self.token_file.read_text(encoding='utf-8').strip()}",
                "Content-Type": "application/json",
                "Accept": "application/json",
            },
        )
        context = ssl.create_default_context(cafile=str(self.ca_file))
        # Neither server nor Service is behind a proxy that the environment may name.
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        try:
            with opener.open(request, timeout=_TIMEOUT_S) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND and name:
                return None
            raise ApiError(f"{method} {path}: {_said(error)}") from error
        except (OSError, HTTPException, ValueError) as error:
            raise ApiError(f"{method} {path}: {error}") from error
        assert isinstance(found, dict)
        return found


def _said(error: urllib.error.HTTPError) -> str:
    """What a server says of its refusal, in its own words."""
    text = error.read().decode(errors="replace")
    try:
        message = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        message = text.strip() or error.reason
    return f"{error.code} {message}"[:800]


def ask(url: str, question: Mapping[str, object], *, timeout_s: float) -> Answer:
    """Send a request and read the stream to its end.

    Args:
        url: The cluster's address.
        question: The body.
        timeout_s: How long each wait for something to read may last.

    Raises:
        NotConnectedError: Nobody listens there yet.
        AnswerError: The answer was not whole.
    """
    request = urllib.request.Request(  # noqa: S310 - the scheme is the operator's
        f"{url}/v1/chat/completions",
        method="POST",
        data=json.dumps(question).encode(),
        headers={"Content-Type": "application/json", "Accept": "text/event-stream"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            return read_answer(answer)
    except urllib.error.HTTPError as error:
        raise AnswerError(f"{request.full_url}: {_said(error)}") from error
    except urllib.error.URLError as error:
        raise NotConnectedError(f"{request.full_url}: {error.reason}") from error
    except (OSError, HTTPException) as error:
        raise AnswerError(f"{request.full_url}: the stream was cut: {error!r}") from error
