"""Tools: checked in vLLM's words and order, part of the prompt, never called."""

from __future__ import annotations

import msgspec
import pytest

from pdcluster_sim.api.rejections import RequestRejectedError
from pdcluster_sim.api.sampling import chat_tokens
from pdcluster_sim.api.schemas import ChatRequest, parse_body
from pdcluster_sim.api.tools import check_tool_fields, check_tool_parsing, effective_tool_choice

TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}
OTHER = {"type": "function", "function": {"name": "listen", "parameters": {}}}
NAMED = {"type": "function", "function": {"name": "look"}}


def chat(**fields: object) -> ChatRequest:
    body = {"messages": [{"role": "user", "content": "hello"}], **fields}
    return parse_body(msgspec.json.encode(body), ChatRequest)


@pytest.mark.parametrize(
    ("fields", "choice"),
    [
        ({}, "none"),
        ({"tools": None}, "none"),
        ({"tools": [TOOL]}, "auto"),
        ({"tools": [TOOL], "tool_choice": None}, None),
        ({"tools": [TOOL], "tool_choice": "required"}, "required"),
    ],
)
def test_with_tools_the_choice_is_auto_unless_it_is_said(
    fields: dict[str, object], choice: object
) -> None:
    assert choice == effective_tool_choice(chat(**fields))


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": []}, "tools", "must not be an empty array"),
        ({"tool_choice": "auto"}, "tool_choice", "`tools` must be set"),
        ({"tool_choice": NAMED}, "tool_choice", "`tools` must be set"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice", "Invalid value for `tool_choice`"),
        ({"tools": [OTHER], "tool_choice": NAMED}, "tool_choice", "does not match any"),
        ({"tools": [TOOL], "tool_choice": {}}, "tool_choice.function", "has to name a function"),
    ],
)
def test_fields_that_do_not_fit_are_rejected(
    fields: dict[str, object], param: str, words: str
) -> None:
    with pytest.raises(RequestRejectedError) as caught:
        check_tool_fields(chat(**fields))
    assert (400, param) == (caught.value.status, caught.value.param)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser'),
        ({"tool_choice": "auto"}, '"auto" tool choice requires'),
        ({"tool_choice": "required"}, 'tool_choice="required" requires --tool-call-parser'),
        ({"tool_choice": NAMED}, 'tool_choice=function "look" requires --tool-call-parser'),
    ],
)
def test_an_engine_that_parses_no_tools_rejects_every_choice_of_them(
    fields: dict[str, object], words: str
) -> None:
    body = chat(tools=[TOOL], **fields)
    check_tool_fields(body)
    check_tool_parsing(body, parses_tools=True)
    with pytest.raises(RequestRejectedError) as caught:
        check_tool_parsing(body, parses_tools=False)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [{}, {"tool_choice": "none"}, {"tools": [TOOL], "tool_choice": "none"},
     {"tools": [TOOL], "tool_choice": None}],
)  # fmt: skip
def test_without_a_choice_of_tools_nothing_is_needed(fields: dict[str, object]) -> None:
    body = chat(**fields)
    check_tool_fields(body)
    check_tool_parsing(body, parses_tools=False)


def test_tools_and_their_order_are_part_of_the_prompt() -> None:
    prompts = [chat_tokens(chat(tools=tools)) for tools in (None, [TOOL, OTHER], [OTHER, TOOL])]
    assert len(set(prompts)) == 3
    assert chat_tokens(chat(tools=[TOOL], tool_choice="none")) == chat_tokens(chat(tools=[TOOL]))
