"""What the prefill leg overrides is checked before any engine works for it."""

from __future__ import annotations

import json

import pytest

from pdcluster_proxy.core.bodies import Api, ClientRequest, parse_request
from pdcluster_proxy.errors import RejectedError


def parsed(api: Api = Api.CHAT, **fields: object) -> ClientRequest:
    prompt = (
        {"messages": [{"role": "user", "content": "a"}]} if api is Api.CHAT else {"prompt": "a"}
    )
    return parse_request(
        json.dumps({"model": "m", **prompt, **fields}).encode(), api=api, model="m"
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": "x"}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": [1]}, "max_tokens"),
        ({"max_tokens": {}}, "max_tokens"),
        ({"max_tokens": False}, "max_tokens"),
        ({"max_completion_tokens": "x"}, "max_completion_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"stream_options": "x", "stream": True}, "stream_options"),
        ({"stream_options": [], "stream": True}, "stream_options"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream_options": {"include_usage": True}, "stream": False}, "stream_options"),
    ],
)
@pytest.mark.parametrize("api", list(Api))
def test_what_no_engine_takes_is_rejected_with_its_field(
    api: Api, fields: dict[str, object], param: str
) -> None:
    with pytest.raises(RejectedError) as raised:
        parsed(api, **fields)
    assert (raised.value.status_code, raised.value.param) == (400, param)
    assert repr(param) in str(raised.value)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_tokens": None, "min_tokens": None, "stream_options": None},
        {"max_tokens": 1},
        {"max_tokens": 16.0},
        {"max_tokens": "16"},
        {"max_tokens": 10**15},
        {"min_tokens": 0},
        {"min_tokens": 8, "max_tokens": 8},
        {"min_tokens": 8, "max_tokens": 4, "max_completion_tokens": 8},
        {"stream": True, "stream_options": {"include_usage": True}},
    ],
)
def test_what_engines_take_passes(fields: dict[str, object]) -> None:
    assert parsed(**fields).top.keys() >= fields.keys()


def test_what_only_d_sees_is_ds_to_judge() -> None:
    # With echo and no tokens an engine gives the prompt's log probabilities.
    parsed(Api.COMPLETIONS, echo=True, max_tokens=0, logprobs=1)
