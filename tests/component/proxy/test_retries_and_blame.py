"""What a failure costs: a retry only where one happens, blame only where it is due, one count."""

from __future__ import annotations

import pytest
from tests.support.exchange_rig import (
    Rig,
    ask,
    config,
    decode_answer,
    hang,
    prefill_answer,
    request_bytes,
    reset_after_accept,
    rig,
    token_event,
)
from tests.support.scripted_engine import (
    STREAM_HEAD,
    Peer,
    Script,
    chunk,
    eventually,
    json_answer,
    replies,
)

from pdcluster_api.proxy_config import AdmissionConfig, ProxyConfig, TimeoutsConfig
from pdcluster_proxy.core.messages import OutcomeKind
from pdcluster_proxy.core.ports import Address
from pdcluster_proxy.core.retry import FLOOR_PER_S

P_OK = replies(prefill_answer())
D_OK = replies(decode_answer())
P_BROKEN = replies(json_answer(b"{}", status=500))
P_REJECTS = replies(json_answer(b'{"error":{"message":"too long"}}', status=400))


async def endless(peer: Peer) -> None:
    await peer.request()
    await peer.send(STREAM_HEAD + chunk(token_event("a")))
    await peer.until_closed()


def still_clock(made: Rig) -> None:
    """Let no time pass, so that the budget gains nothing by it."""
    now = made.clock()
    made.worker.clock = lambda: now


def budget(made: Rig) -> int:
    """Count the retries that are left, by asking for them until there are none."""
    number = 0
    while made.worker.may_retry():
        made.worker.spend_retry()
        number += 1
        assert number < 1000
    return number


# Credit of a fifth of a retry per request comes on top of what was there at the beginning.
SAVED = int(FLOOR_PER_S)


@pytest.mark.parametrize(
    ("prefill", "decode", "num_requests"),
    [
        # Nobody else could prefill.
        ([P_BROKEN], [D_OK], 10),
        # The engine has spoken: nothing else is tried.
        ([P_REJECTS, P_REJECTS], [D_OK], 10),
        # The params are spent and no other engine could decode.
        ([P_OK], [reset_after_accept], 10),
    ],
    ids=["nobody-else-prefills", "rejected", "nobody-else-decodes"],
)
async def test_a_retry_that_does_not_happen_costs_nothing(
    prefill: list[Script], decode: list[Script], num_requests: int
) -> None:
    async with rig(prefill, decode) as made:
        still_clock(made)
        for _ in range(num_requests):
            assert 400 <= (await ask(made)).status < 600
        assert SAVED + num_requests // 5 == budget(made)


async def test_a_retry_that_happens_costs_one() -> None:
    async with rig([P_BROKEN, P_BROKEN], [D_OK]) as made:
        still_clock(made)
        for _ in range(2):
            assert 502 == (await ask(made)).status  # One P, then the other, then no more.
        assert SAVED - 2 == budget(made)


async def test_a_second_failure_that_ends_the_exchange_costs_nothing_more() -> None:
    async with rig([P_OK], [reset_after_accept, reset_after_accept]) as made:
        still_clock(made)
        assert 502 == (await ask(made)).status  # One D, then the other, then no more.
        assert SAVED - 1 == budget(made)


async def test_a_request_that_was_rejected_earns_no_retry() -> None:
    narrow = config(
        admission=AdmissionConfig(max_in_flight=1, max_queue=1, queue_timeout_seconds=60.0)
    )
    async with rig([hang], [D_OK], narrow) as made:
        still_clock(made)
        for number in (1, 2):  # One runs, one waits.
            _, writer = await made.edge.open()
            writer.write(request_bytes())
            await eventually(
                lambda n=number: made.worker.gate.running + made.worker.gate.waiting == n  # type: ignore[misc]
            )
        for _ in range(50):
            assert 429 == (await ask(made)).status
        assert SAVED == budget(made)


# Whose deadline was it? -----------------------------------------------------------------------


def within(*, request_s: float, first_byte_s: float = 20.0) -> ProxyConfig:
    return config(
        timeouts=TimeoutsConfig(
            connect_seconds=1.0,
            request_seconds=request_s,
            first_byte_seconds=first_byte_s,
            idle_seconds=20.0,
        )
    )


def blamed(made: Rig) -> list[str]:
    return [o.endpoint for o in made.companion.outcomes if o.kind is not OutcomeKind.SUCCEEDED]


@pytest.mark.parametrize(
    ("prefill", "decode", "stream"),
    [
        ([hang], [D_OK], False),
        ([P_OK], [hang], False),
        ([P_OK], [hang], True),
        ([P_OK], [endless], True),
    ],
    ids=["prefill", "decode", "before-the-first-event", "streaming"],
)
async def test_our_own_deadline_blames_no_engine(
    prefill: list[Script], decode: list[Script], stream: bool
) -> None:
    async with rig(prefill, decode, within(request_s=0.3)) as made:
        answer = await ask(made, stream=stream)
        assert b"request-timeout" in answer.body
        await eventually(lambda: made.edge.num_tasks == 0)
        assert [] == blamed(made)
        made.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("prefill", "decode", "name"),
    [([hang], [D_OK], "p1"), ([P_OK], [hang], "d1")],
)
async def test_an_engine_that_is_silent_within_our_time_is_blamed(
    prefill: list[Script], decode: list[Script], name: str
) -> None:
    async with rig(prefill, decode, within(request_s=60.0, first_byte_s=1.0)) as made:
        assert 504 == (await ask(made)).status
        assert [name] == blamed(made)


async def test_a_connect_that_our_deadline_cuts_short_blames_no_engine() -> None:
    rigs: list[Rig] = []

    async def at_the_last_moment(peer: Peer) -> None:
        await peer.request()
        rigs[0].pass_time(60.0)
        await peer.send(prefill_answer())
        await peer.until_closed()

    async with rig([at_the_last_moment], [D_OK, D_OK], within(request_s=60.0)) as made:
        rigs.append(made)
        answer = await ask(made)
        assert (504, "request-timeout") == (answer.status, answer.code)
        assert [] == blamed(made)
        failures = [labels for name, labels, _ in made.companion.counts if "leg_failures" in name]
        assert ("decode", "decode-unreachable") not in failures
        made.assert_nothing_is_left()


# A bug of ours --------------------------------------------------------------------------------


def counted(made: Rig) -> list[tuple[str, ...]]:
    return [labels for name, labels, _ in made.companion.counts if name == "requests_total"]


async def test_an_internal_error_is_counted_once_with_its_status(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with rig([P_OK], [D_OK]) as made:

        async def bug(_address: Address) -> None:
            raise RuntimeError("a bug")

        made.engines.before_connect = bug
        answer = await ask(made)
        assert (500, "internal-error") == (answer.status, answer.code)
        assert [("completions", "500", "internal-error")] == counted(made)
        assert ["exchange.failed"] == [r.message for r in caplog.records]
        made.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("prefill", "expected"),
    [
        (P_OK, ("completions", "200", "")),
        (P_BROKEN, ("completions", "502", "prefill-failed")),
        (P_REJECTS, ("completions", "400", "prefill-rejected")),
    ],
)
async def test_every_exchange_is_counted_once(prefill: Script, expected: tuple[str, ...]) -> None:
    async with rig([prefill], [D_OK]) as made:
        await ask(made)
        await eventually(lambda: made.edge.num_tasks == 0)
        assert [expected] == counted(made)
        (record,) = made.records()
        assert expected[1] == str(record["status"])
        assert record["prefill"], "a rejection without its engine can't be looked into"
