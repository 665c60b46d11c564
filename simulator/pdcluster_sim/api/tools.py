"""``tools`` and ``tool_choice``: what vLLM makes of them before anything is generated.

Pure. Checks only, in vLLM's words: a tool is never called here.

Source:
    vLLM 0.32.0, ``check_tool_usage`` of ``entrypoints/openai/chat_completion/protocol.py`` and
    ``render_chat`` of ``renderers/online_renderer.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from pdcluster_sim.api.rejections import RequestRejectedError, bad_request

if TYPE_CHECKING:
    from pdcluster_sim.api.schemas import ChatRequest

__all__ = ["check_tool_fields", "check_tool_parsing", "effective_tool_choice"]

_CHOICES: Final = ("auto", "required")


def effective_tool_choice(body: ChatRequest) -> object:
    """Return the choice that counts: with tools and none said it is ``auto``, else ``none``."""
    if body.tool_choice is msgspec.UNSET:
        return "auto" if body.tools else "none"
    return body.tool_choice


def check_tool_fields(body: ChatRequest) -> None:
    """Check that the two fields fit each other; vLLM does so while it parses.

    Raises:
        RequestRejectedError: They don't, status 400.
    """
    if body.tools is not None and not body.tools:
        raise _rejected(
            "`tools` must not be an empty array. Either provide at least one tool or omit the "
            "field entirely.",
            "tools",
        )
    choice = effective_tool_choice(body)
    if choice is None or choice == "none":
        return
    if body.tools is None:
        raise _rejected("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if isinstance(choice, dict):
        _check_named(choice, body.tools)
    elif choice not in _CHOICES:
        raise _rejected(
            f"Invalid value for `tool_choice`: {choice}! Only named tools, "
            '"none", "auto" or "required" are supported.',
            "tool_choice",
        )


def check_tool_parsing(body: ChatRequest, *, parses_tools: bool) -> None:
    """Check that the engine could find calls of tools in what it generates.

    Args:
        body: The request, its fields checked.
        parses_tools: Whether ``--enable-auto-tool-choice`` and ``--tool-call-parser`` are set.

    Raises:
        RequestRejectedError: It could not, status 400.
    """
    choice = effective_tool_choice(body)
    if parses_tools or choice is None or choice == "none":
        return
    if choice == "auto":
        raise bad_request(
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        )
    shown = f'function "{_function_name(choice)}"' if isinstance(choice, dict) else f'"{choice}"'
    raise bad_request(f"tool_choice={shown} requires --tool-call-parser to be set")


def _check_named(choice: dict[str, object], tools: list[dict[str, object]]) -> None:
    name = _function_name(choice)
    if not isinstance(name, str) or not name:
        raise _rejected(
            "`tool_choice` has to name a function: "
            '`{"type": "function", "function": {"name": "my_function"}}`',
            "tool_choice.function",
        )
    if all(_function_name(tool) != name for tool in tools):
        raise _rejected(
            "The tool specified in `tool_choice` does not match any of the specified `tools`",
            "tool_choice",
        )


def _function_name(given: dict[str, object]) -> object:
    function = given.get("function")
    return function.get("name") if isinstance(function, dict) else None


def _rejected(message: str, param: str) -> RequestRejectedError:
    return bad_request(f"{message} (parameter={param})", param=param)
