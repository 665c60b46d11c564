"""The exchange over engines whose every byte the test decides."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.support.exchange_rig import (
    DONE,
    SIDE_CHANNEL,
    Rig,
    ask,
    config,
    decode_answer,
    decode_stream,
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

from pdcluster_api.proxy_config import AdmissionConfig, LeaseConfig, TimeoutsConfig
from pdcluster_proxy.core.messages import OutcomeKind
from pdcluster_proxy.core.ports import Address

P_OK = replies(prefill_answer())
D_OK = replies(decode_answer())
D_STREAM = replies(decode_stream("a", "b"))


def error_of(answer: bytes) -> dict[str, object]:
    parsed = json.loads(answer)["error"]
    assert isinstance(parsed, dict)
    return parsed


def recording(script_answer: bytes, requests: list[tuple[bytes, bytes]]) -> Script:
    async def script(peer: Peer) -> None:
        while True:
            requests.append(await peer.request())
            await peer.send(script_answer)

    return script


async def test_an_answer_goes_over_both_legs_and_carries_d_s_text() -> None:
    to_p: list[tuple[bytes, bytes]] = []
    to_d: list[tuple[bytes, bytes]] = []
    async with rig([recording(prefill_answer(), to_p)], [recording(decode_answer(), to_d)]) as made:
        answer = await ask(made, max_tokens=5)
        assert 200 == answer.status
        assert "client-1" == answer.headers["x-request-id"]
        assert "kv_transfer_params" not in answer.json
        assert {"cached_tokens": 4} == answer.json["usage"]["prompt_tokens_details"]  # type: ignore[index]
        made.assert_nothing_is_left()
    sent_p, sent_d = json.loads(to_p[0][1]), json.loads(to_d[0][1])
    assert (1, 5) == (sent_p["max_tokens"], sent_d["max_tokens"])
    raw = json.dumps(json.loads(prefill_answer().partition(b"\r\n\r\n")[2])["kv_transfer_params"])
    assert raw.encode() in to_d[0][1]


async def test_both_legs_carry_one_id_that_no_other_exchange_has() -> None:
    heads: list[tuple[bytes, bytes]] = []
    async with rig(
        [recording(prefill_answer(), heads)], [recording(decode_answer(), heads)]
    ) as made:
        await ask(made)
        await ask(made)
    ids = [
        line
        for head, _ in heads
        for line in head.lower().split(b"\r\n")
        if line.startswith(b"x-request-id:")
    ]
    assert ids[0] == ids[1]
    assert ids[2] == ids[3]
    assert ids[0] != ids[2]


async def test_a_stream_reaches_the_client_event_by_event_to_its_terminator() -> None:
    async with rig([P_OK], [D_STREAM]) as made:
        answer = await ask(made, stream=True)
        assert token_event("a") + token_event("b") + DONE == answer.body
        assert answer.is_whole
        assert "text/event-stream; charset=utf-8" == answer.headers["content-type"]
        assert ["granted", "handed-off", "ended"] == made.companion.lease_steps
        made.assert_nothing_is_left()


async def test_the_exchange_log_tells_the_story_without_the_prompt() -> None:
    async with rig([P_OK], [D_OK]) as made:
        await ask(made, prompt="secret words")
        (record,) = made.records()
        assert b"secret" not in made.log.getvalue()
    assert ("p1", "d1", "DONE", 200) == tuple(
        record[key] for key in ("prefill", "decode", "state", "status")
    )
    assert (2, 20, 4, 30) == tuple(
        record[key] for key in ("num_blocks", "num_prompt_tokens", "num_cached_tokens", "lease_s")
    )


async def test_connections_are_reused() -> None:
    async with rig([P_OK], [D_OK]) as made:
        for _ in range(5):
            assert 200 == (await ask(made)).status
        assert (1, 1) == (made.prefill[0].num_connections, made.decode[0].num_connections)


# Fail-over ------------------------------------------------------------------------------------


async def closed_port(made: Rig, name: str) -> None:
    """Point one endpoint at a port where nobody listens."""
    server = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    made.companion.push(
        *(
            made.endpoint(
                e.name, made.prefill[0], host="127.0.0.1", port=port if e.name == name else e.port
            )
            for e in made.companion.snapshot.endpoints
        )
    )


async def test_a_decode_engine_that_takes_no_connects_costs_no_second_prefill() -> None:
    seen: list[tuple[bytes, bytes]] = []
    async with rig([recording(prefill_answer(), seen)], [D_OK, D_OK]) as made:
        await closed_port(made, "d1")
        for _ in range(6):
            assert 200 == (await ask(made)).status
        failed = [o for o in made.companion.outcomes if o.kind is OutcomeKind.FAILED_LOCALLY]
        assert {"d1"} == {o.endpoint for o in failed}
        assert 6 == len(seen)
        made.assert_nothing_is_left()


async def test_a_decode_engine_that_took_the_request_costs_a_second_prefill() -> None:
    to_p: list[tuple[bytes, bytes]] = []
    to_d: list[tuple[bytes, bytes]] = []
    second = False

    async def p_script(peer: Peer) -> None:
        while True:
            to_p.append(await peer.request())
            await peer.send(prefill_answer(f"cmpl-{len(to_p)}"))

    async def d_script(peer: Peer) -> None:
        nonlocal second
        to_d.append(await peer.request())
        if not second:
            second = True
            peer.reset()
            return
        await peer.send(decode_answer())

    async with rig([p_script], [d_script, d_script]) as made:
        assert 200 == (await ask(made)).status
        assert (2, 2) == (len(to_p), len(to_d))
        ids = [json.loads(body)["kv_transfer_params"]["remote_request_id"] for _, body in to_d]
        assert ["cmpl-1", "cmpl-2"] == ids
        # Whether the first D will still read is unknown: its lease only stops being renewed.
        ended = [e for e in made.companion.leases if e.kind.value == "ended"]
        assert [("cmpl-1", False), ("cmpl-2", False)] == [(e.request_id, e.release) for e in ended]
        made.assert_nothing_is_left()


async def test_params_never_go_to_two_engines_that_may_have_read_them() -> None:
    async with rig([P_OK], [reset_after_accept, reset_after_accept]) as made:
        answer = await ask(made)
        assert (502, "decode-lost") == (answer.status, answer.code)
        assert [1, 1] == [e.num_connections for e in made.decode]
        made.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("broken", "status"),
    [
        (replies(json_answer(b"{}", status=500)), 200),
        (replies(json_answer(b"busy", status=503)), 200),
        (replies(json_answer(b"<html>")), 200),
        (replies(prefill_answer(kv_transfer_params=None)), 200),
        (replies(prefill_answer(kv_transfer_params={"do_remote_prefill": True})), 200),
        (reset_after_accept, 200),
        (replies(json_answer(b'{"error":{"message":"too long"}}', status=400)), 400),
    ],
)
async def test_a_prefill_engine_that_fails_is_replaced_unless_it_rejects(
    broken: Script, status: int
) -> None:
    async with rig([broken, P_OK], [D_OK]) as made:
        made.worker.legs.enter("p2", 10**6)
        answer = await ask(made)
        made.worker.legs.leave("p2", 10**6)
        assert status == answer.status
        made.assert_nothing_is_left()


async def test_params_that_name_a_foreign_side_channel_are_never_handed_on() -> None:
    evil = json.loads(prefill_answer().partition(b"\r\n\r\n")[2])["kv_transfer_params"]
    evil["remote_host"] = "10.9.8.7"
    async with rig([replies(prefill_answer(kv_transfer_params=evil))], [D_OK]) as made:
        answer = await ask(made)
        assert (502, "hand-off-unusable") == (answer.status, answer.code)
        assert b"10.9.8.7" not in answer.body
        assert SIDE_CHANNEL[0].encode() not in answer.body
        assert [] == made.companion.lease_steps
        assert 0 == made.decode[0].num_connections


async def test_an_engine_s_rejection_reaches_the_client_as_it_is() -> None:
    body = b'{"error":{"message":"max_tokens is too large","type":"BadRequestError","code":400}}'
    async with rig([P_OK], [replies(json_answer(body, status=400))]) as made:
        answer = await ask(made)
        assert (400, body) == (answer.status, answer.body)
        assert "decode-rejected" == answer.headers["x-pdcluster-reason"]
        assert made.companion.leases[-1].release
        made.assert_nothing_is_left()


async def test_after_the_first_byte_a_failure_ends_the_stream_visibly() -> None:
    async def cut(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM_HEAD + chunk(token_event("a")))
        await eventually(lambda: made.companion.lease_steps[-1:] == ["ended"])
        peer.reset()

    async with rig([P_OK], [cut, D_STREAM]) as made:
        made.worker.legs.enter("d2")
        answer = await ask(made, stream=True)
        made.worker.legs.leave("d2")
        first, _, rest = answer.body.partition(b"\n\n")
        assert token_event("a") == first + b"\n\n"
        assert "decode-lost" == error_of(rest.removeprefix(b"data: "))["code"]
        assert DONE not in answer.body
        assert not answer.is_whole
        made.assert_nothing_is_left()


@pytest.mark.parametrize(
    "failure",
    [
        b'data: {"error":{"message":"Internal server error","code":500}}\n\n',
        b'data: {"choices":[{"index":0,"text":"","finish_reason":"error"}]}\n\n',
    ],
)
async def test_a_stream_that_fails_before_its_first_token_is_tried_elsewhere(
    failure: bytes,
) -> None:
    bad = STREAM_HEAD + chunk(failure) + chunk(DONE) + b"0\r\n\r\n"
    async with rig([P_OK], [replies(bad), D_STREAM]) as made:
        made.worker.legs.enter("d2")
        answer = await ask(made, stream=True)
        made.worker.legs.leave("d2")
        assert (200, True) == (answer.status, answer.is_whole)
        assert token_event("a") + token_event("b") + DONE == answer.body
        made.assert_nothing_is_left()


async def test_a_stream_that_fails_after_tokens_never_claims_to_be_complete() -> None:
    failure = b'data: {"error":{"message":"boom","code":500}}\n\n'
    bad = STREAM_HEAD + chunk(token_event("a")) + chunk(failure) + chunk(DONE) + b"0\r\n\r\n"
    async with rig([P_OK], [replies(bad)]) as made:
        answer = await ask(made, stream=True)
        assert DONE not in answer.body
        assert b"boom" not in answer.body
        assert b'"decode-failed"' in answer.body
        made.assert_nothing_is_left()


# The lease clock ------------------------------------------------------------------------------


async def test_a_late_hand_off_is_prefilled_again_and_nothing_was_sent_on_the_first() -> None:
    to_p: list[tuple[bytes, bytes]] = []
    to_d: list[tuple[bytes, bytes]] = []

    async def p_script(peer: Peer) -> None:
        while True:
            to_p.append(await peer.request())
            await peer.send(prefill_answer(f"cmpl-{len(to_p)}"))

    async with rig([p_script], [recording(decode_answer(), to_d)]) as made:
        delays = [60.0]

        async def delay(address: Address) -> None:
            if address == made.decode[0].address and delays:
                made.pass_time(delays.pop())

        made.engines.before_connect = delay
        answer = await ask(made)
        assert 200 == answer.status
        assert (2, 1) == (len(to_p), len(to_d))
        assert b"cmpl-2" in to_d[0][1]
        assert made.companion.leases[1].release
        made.assert_nothing_is_left()


async def test_hand_offs_that_are_always_late_end_in_a_clear_answer() -> None:
    async with rig([P_OK], [D_OK]) as made:

        async def delay(address: Address) -> None:
            if address == made.decode[0].address:
                made.pass_time(60.0)

        made.engines.before_connect = delay
        answer = await ask(made)
        assert (503, "hand-off-late") == (answer.status, answer.code)
        assert "1" == answer.headers["retry-after"]
        made.assert_nothing_is_left()


async def test_a_pair_that_has_met_may_hand_off_later_than_one_that_has_not() -> None:
    async with rig([P_OK], [D_OK]) as made:
        p1, d1 = made.worker.pool.by_name["p1"], made.worker.pool.by_name["d1"]
        assert 14.0 == made.worker.hand_off_s(p1, d1, "engine-p")
        await ask(made)
        assert 23.0 == made.worker.hand_off_s(p1, d1, "engine-p")
        made.companion.push(
            made.endpoint("p1", made.prefill[0]),
            made.endpoint("d1", made.decode[0], incarnation=2),
        )
        d1 = made.worker.pool.by_name["d1"]
        assert 14.0 == made.worker.hand_off_s(p1, d1, "engine-p")


async def test_a_granted_exchange_waits_for_a_decode_engine_to_come() -> None:
    async with rig([P_OK], [D_OK]) as made:

        async def vanish(address: Address) -> None:
            if address == made.prefill[0].address:
                made.publish(decode=False)

        made.engines.before_connect = vanish
        asking = asyncio.create_task(ask(made))
        await eventually(lambda: made.companion.lease_steps == ["granted"])
        made.publish()
        assert 200 == (await asking).status
        made.assert_nothing_is_left()


async def test_a_decode_engine_that_never_comes_ends_with_the_hand_off_deadline() -> None:
    async with rig([P_OK], [D_OK]) as made:

        async def vanish(address: Address) -> None:
            made.publish(decode=False)

        made.engines.before_connect = vanish
        asking = asyncio.create_task(ask(made))
        await eventually(lambda: made.companion.lease_steps == ["granted"])
        made.pass_time(30.0)
        answer = await asking
        assert (503, "no-decode-engine") == (answer.status, answer.code)
        assert made.companion.leases[-1].release
        made.assert_nothing_is_left()


async def test_silence_within_the_hold_bound_only_is_told_as_such() -> None:
    held = config(lease=LeaseConfig(duration_seconds=30, max_hold_seconds=2))
    async with rig([P_OK], [hang], held) as made:
        answer = await ask(made)
        assert (503, "decode-hold-bound") == (answer.status, answer.code)
        made.assert_nothing_is_left()


# Clients that leave ---------------------------------------------------------------------------


async def streaming_for_ever(peer: Peer) -> None:
    await peer.request()
    await peer.send(STREAM_HEAD + chunk(token_event("a")))
    await peer.until_closed()


@pytest.mark.parametrize(
    ("point", "stream"),
    [
        ("prefill", True),
        ("prefill", False),
        ("between", True),
        ("between", False),
        ("connecting", True),
        ("connecting", False),
        ("queued", True),
        ("queued", False),
        # An answer that is not streamed is read whole before a byte goes out.
        ("streaming", True),
    ],
)
async def test_a_client_that_leaves_anywhere_leaves_nothing_behind(
    point: str, stream: bool
) -> None:
    prefill = hang if point == "prefill" else P_OK
    decode = streaming_for_ever if point == "streaming" else hang
    async with rig([prefill], [decode]) as made:
        stuck = asyncio.Event()

        async def before(address: Address) -> None:
            if point == "between":
                made.publish(decode=False)
            if point == "connecting" and address == made.decode[0].address:
                stuck.set()
                await asyncio.Event().wait()

        made.engines.before_connect = before
        reader, writer = await made.edge.open()
        writer.write(request_bytes(stream=stream))
        reached = {
            "prefill": lambda: made.prefill[0].num_connections == 1 and made.num_open == 1,
            "between": lambda: made.companion.lease_steps == ["granted"] and made.num_open == 0,
            "queued": lambda: made.companion.lease_steps == ["granted", "handed-off"],
            "streaming": lambda: made.companion.lease_steps[-1:] == ["ended"],
            "connecting": stuck.is_set,
        }
        await eventually(reached[point])
        if point == "streaming":
            await reader.readuntil(b"\n\n")
        writer.transport.abort()
        await eventually(lambda: made.edge.num_tasks == 0)
        await eventually(lambda: made.num_open == 0)
        made.assert_nothing_is_left()
        ends = [e.release for e in made.companion.leases if e.kind.value == "ended"]
        # D has it or has read it: only where nobody can read any more is the lease released.
        expected = {"prefill": [], "between": [True], "connecting": [True]}
        assert expected.get(point, [False]) == ends
        assert (
            "requests_total",
            ("completions", "499", "client-gone"),
            1.0,
        ) in made.companion.counts


async def test_a_client_that_leaves_the_queue_frees_its_place() -> None:
    narrow = config(
        admission=AdmissionConfig(max_in_flight=1, max_queue=1, queue_timeout_seconds=5.0)
    )
    async with rig([hang], [D_OK], narrow) as made:
        _, first = await made.edge.open()
        first.write(request_bytes())
        await eventually(lambda: made.worker.gate.running == 1)
        _, second = await made.edge.open()
        second.write(request_bytes())
        await eventually(lambda: made.worker.gate.waiting == 1)
        answer = await ask(made)
        assert (429, "rejected-queue-full") == (answer.status, answer.code)
        second.transport.abort()
        await eventually(lambda: made.worker.gate.waiting == 0)
        first.transport.abort()
        await eventually(lambda: made.worker.gate.running == 0)
        made.assert_nothing_is_left()


async def test_whoever_waits_gets_the_next_free_place() -> None:
    narrow = config(
        admission=AdmissionConfig(max_in_flight=1, max_queue=8, queue_timeout_seconds=5.0)
    )
    async with rig([P_OK], [D_OK], narrow) as made:
        answers = await asyncio.gather(*(ask(made) for _ in range(6)))
        assert [200] * 6 == [answer.status for answer in answers]
        made.assert_nothing_is_left()


async def test_a_wait_longer_than_its_bound_is_evicted() -> None:
    narrow = config(
        admission=AdmissionConfig(max_in_flight=1, max_queue=1, queue_timeout_seconds=0.05)
    )
    async with rig([hang], [D_OK], narrow) as made:
        _, first = await made.edge.open()
        first.write(request_bytes())
        await eventually(lambda: made.worker.gate.running == 1)
        answer = await ask(made)
        assert (429, "evicted-queue-timeout") == (answer.status, answer.code)
        first.transport.abort()
        await eventually(lambda: made.worker.gate.running == 0)


# Deadlines ------------------------------------------------------------------------------------

SHORT = config(
    timeouts=TimeoutsConfig(
        connect_seconds=1.0, request_seconds=0.3, first_byte_seconds=20.0, idle_seconds=20.0
    )
)


@pytest.mark.parametrize("point", ["prefill", "decode"])
async def test_the_overall_deadline_is_told_in_time_on_both_legs(point: str) -> None:
    async with rig([hang if point == "prefill" else P_OK], [hang], SHORT) as made:
        answer = await ask(made)
        assert 504 == answer.status
        await eventually(lambda: made.edge.num_tasks == 0)
        made.assert_nothing_is_left()


async def test_the_overall_deadline_cuts_a_stream_visibly() -> None:
    async with rig([P_OK], [streaming_for_ever], SHORT) as made:
        answer = await ask(made, stream=True)
        assert b"request-timeout" in answer.body
        assert not answer.is_whole
        made.assert_nothing_is_left()


async def test_an_engine_that_falls_silent_ends_the_stream_visibly() -> None:
    idle = config(
        timeouts=TimeoutsConfig(
            connect_seconds=1.0, request_seconds=20.0, first_byte_seconds=20.0, idle_seconds=0.1
        )
    )
    async with rig([P_OK], [streaming_for_ever], idle) as made:
        answer = await ask(made, stream=True)
        assert b"decode-idle" in answer.body
        assert not answer.is_whole
        made.assert_nothing_is_left()


# Nobody to serve ------------------------------------------------------------------------------


async def test_without_engines_the_client_is_told_at_once_what_is_missing() -> None:
    async with rig([P_OK], [D_OK]) as made:
        made.companion.push()
        answer = await ask(made)
        assert (503, "no-prefill-engine") == (answer.status, answer.code)
        made.publish(decode=False)
        assert "no-decode-engine" == (await ask(made)).code


async def test_several_sequences_go_to_decode_alone() -> None:
    to_d: list[tuple[bytes, bytes]] = []
    async with rig([P_OK], [recording(decode_answer(), to_d)]) as made:
        assert 200 == (await ask(made, n=2)).status
        assert 0 == made.prefill[0].num_connections
        assert b"kv_transfer_params" not in to_d[0][1]
        made.assert_nothing_is_left()


async def test_decode_prefills_locally_only_where_it_is_allowed_to() -> None:
    allowed = config(local_prefill_fallback="WhenNoPrefill")
    async with rig([P_OK], [D_OK], allowed) as made:
        made.companion.push(made.endpoint("d1", made.decode[0]))
        assert 200 == (await ask(made)).status
        assert 0 == made.prefill[0].num_connections


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        (
            b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: 3\r\n\r\nabc",
            400,
            "invalid-request",
        ),
        (
            request_bytes().replace(b"host: h", b"host: h\r\ncontent-encoding: gzip"),
            415,
            "content-encoding",
        ),
        (
            request_bytes().replace(
                b"host: h", b"host: h\r\ncontent-encoding: gzip\r\ncontent-encoding: identity"
            ),
            415,
            "content-encoding",
        ),
        (request_bytes(kv_transfer_params={"remote_host": "h"}), 400, "invalid-request"),
        (request_bytes(model="other"), 404, "model-not-found"),
        (request_bytes(prompt="x" * 5000), 413, "body-too-large"),
    ],
)
async def test_bad_requests_are_rejected_before_any_leg(raw: bytes, status: int, code: str) -> None:
    async with rig([P_OK], [D_OK], config(max_body_bytes=4096)) as made:
        answer = await ask(made, raw=raw)
        assert (status, code) == (answer.status, answer.code)
        assert code == answer.headers["x-pdcluster-reason"]
        assert 0 == made.prefill[0].num_connections


@pytest.mark.parametrize("coding", [b"Identity", b"identity, identity", b""])
async def test_a_body_that_says_it_is_not_compressed_is_taken(coding: bytes) -> None:
    async with rig([P_OK], [D_OK]) as made:
        raw = request_bytes().replace(b"host: h", b"host: h\r\ncontent-encoding: " + coding)
        assert 200 == (await ask(made, raw=raw)).status


async def test_a_trailer_names_no_request() -> None:
    async with rig([P_OK], [D_OK]) as made:
        _, _, body = request_bytes().partition(b"\r\n\r\n")
        raw = (
            b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
            b"%x\r\n%b\r\n0\r\nx-request-id: trailer-1\r\ncontent-encoding: gzip\r\n\r\n"
        ) % (len(body), body)
        answer = await ask(made, raw=raw)
        assert 200 == answer.status
        assert "trailer-1" != answer.headers["x-request-id"]


async def test_unfinished_bodies_of_a_worker_are_bounded_together() -> None:
    async with rig([P_OK], [D_OK]) as made:
        made.unfinished.limit_bytes = 1000
        head = b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: 2000\r\n\r\n"
        _, first = await made.edge.open()
        first.write(head + b"x" * 900)
        await eventually(lambda: made.unfinished.num_bytes == 900)
        answer = await ask(made, raw=head + b"x" * 101)
        assert (503, "bodies-full") == (answer.status, answer.code)
        assert "1" == answer.headers["retry-after"]
        assert made.unfinished.num_bytes == 900
        assert 200 == (await ask(made)).status  # What comes in one piece takes no such place.
        first.close()
        await eventually(lambda: made.unfinished.num_bytes == 0)
