"""Errors in vLLM's shape.

Pure.

Source:
    vLLM 0.32.0, ``entrypoints/serve/exception_handling`` and answers of a running engine.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar

from pdcluster_sim.errors import SimulatorError

__all__ = [
    "RequestRejectedError",
    "bad_request",
    "internal_error",
    "not_validated",
    "unknown_model",
]


class RequestRejectedError(SimulatorError):
    """A request that is answered with an error.

    Attributes:
        status: HTTP status, also the error's ``code``.
        kind: The error's ``type``.
        param: The field at fault, or None.
    """

    reason: ClassVar[str] = "RequestRejected"

    def __init__(
        self, message: str, *, status: HTTPStatus, kind: str, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> dict[str, object]:
        """Return the error object."""
        return {
            "error": {
                "message": str(self),
                "type": self.kind,
                "param": self.param,
                "code": int(self.status),
            }
        }


def bad_request(message: str, *, param: str | None = None) -> RequestRejectedError:
    """Reject a value that has the right type."""
    return RequestRejectedError(
        message, status=HTTPStatus.BAD_REQUEST, kind="BadRequestError", param=param
    )


def not_validated(
    message: str, *, kind: str, location: str, given: str | None = None
) -> RequestRejectedError:
    """Reject a body that does not have the request's shape, as pydantic's errors are shown."""
    shown = "" if given is None else f", 'input': {given!r}"
    fault = f"{{'type': '{kind}', 'loc': '{location}', 'msg': '{message}'{shown}}}"
    return RequestRejectedError(
        f"1 validation error:\n  {fault}",
        status=HTTPStatus.BAD_REQUEST,
        kind="Bad Request",
        param=location,
    )


def unknown_model(model: str, served: tuple[str, ...]) -> RequestRejectedError:
    """Reject a model that is not served here."""
    return RequestRejectedError(
        f"The model `{model}` does not exist. Valid aliases: {', '.join(served)}.",
        status=HTTPStatus.NOT_FOUND,
        kind="NotFoundError",
        param="model",
    )


def internal_error() -> RequestRejectedError:
    """Answer for a request that the engine failed; vLLM hides the cause too."""
    return RequestRejectedError(
        "Internal server error",
        status=HTTPStatus.INTERNAL_SERVER_ERROR,
        kind="InternalServerError",
    )
