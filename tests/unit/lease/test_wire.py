"""The spelling of notifications and handshakes, byte by byte."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcluster_lease.errors import LocalProtocolError, RemoteProtocolError
from pdcluster_lease.params import RequestId
from pdcluster_lease.wire import (
    CONNECTOR_HISTORY,
    HandshakePayload,
    HandshakeRequest,
    Heartbeat,
    RequestForm,
    TransferComplete,
    Unrecognised,
    connector_release,
    decode_agent_metadata,
    decode_clock,
    decode_handshake_payload,
    decode_handshake_request,
    decode_notification,
    encode_handshake_request,
    encode_notification,
)

IDS = st.from_regex(r"[A-Za-z0-9_.-]{1,40}", fullmatch=True).map(RequestId)


def ids(*names: str) -> tuple[RequestId, ...]:
    return tuple(RequestId(name) for name in names)


# --- notifications --------------------------------------------------------------------------------


def test_a_heartbeat_is_hb_and_the_ids_with_commas() -> None:
    assert encode_notification(Heartbeat(ids("cmpl-a-0-1", "cmpl-b-0-2"))) == (
        b"HB:cmpl-a-0-1,cmpl-b-0-2"
    )


def test_a_completion_is_the_id_and_the_number_of_readers() -> None:
    assert encode_notification(TransferComplete(RequestId("cmpl-a-0-1"), 2)) == b"cmpl-a-0-1:2"


@given(st.lists(IDS, min_size=1, max_size=20))
def test_a_heartbeat_comes_back_as_it_went(names: list[RequestId]) -> None:
    message = Heartbeat(tuple(names))
    assert message == decode_notification(encode_notification(message))


@given(IDS, st.integers(1, 99_999))
def test_a_completion_comes_back_as_it_went(name: RequestId, consumers: int) -> None:
    message = TransferComplete(name, consumers)
    assert message == decode_notification(encode_notification(message))


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"HB:a", Heartbeat(ids("a"))),
        (b"HB:a,,b,", Heartbeat(ids("a", "b"))),
        (b"a:b:3", TransferComplete(RequestId("a:b"), 3)),
        (b"a:007", TransferComplete(RequestId("a"), 7)),
        (b"HB:", Unrecognised(3)),
        (b"HB:,,", Unrecognised(5)),
        (b"", Unrecognised(0)),
        (b"a", Unrecognised(1)),
        (b":1", Unrecognised(2)),
        (b"a:", Unrecognised(2)),
        (b"a:0", Unrecognised(3)),
        (b"a:-1", Unrecognised(4)),
        (b"a:1.0", Unrecognised(5)),
        (b"a:x", Unrecognised(3)),
        (b"a:" + b"9" * 5000, Unrecognised(5002)),
        ("a:\u0663".encode(), Unrecognised(4)),
        (b"\xff:1", Unrecognised(3)),
        (b"PUSH_REG:\x81\xa1a\x01", Unrecognised(13)),
    ],
)
def test_a_notification_is_read_or_passed_over(payload: bytes, message: object) -> None:
    assert message == decode_notification(payload)


@given(st.binary(max_size=100))
def test_reading_a_notification_never_raises(payload: bytes) -> None:
    decode_notification(payload)


@pytest.mark.parametrize(
    "message",
    [
        Heartbeat(()),
        Heartbeat(ids("")),
        Heartbeat(ids("a,b")),
        TransferComplete(RequestId(""), 1),
        TransferComplete(RequestId("a"), 0),
    ],
)
def test_what_would_be_misread_is_not_sent(message: Heartbeat | TransferComplete) -> None:
    with pytest.raises(LocalProtocolError):
        encode_notification(message)


# --- handshake requests ---------------------------------------------------------------------------


def test_a_request_for_rank_zero_has_the_bytes_of_vllm() -> None:
    expected = bytes.fromhex("93c40c6765745f6d6574615f6d73670000")
    assert expected == encode_handshake_request(HandshakeRequest(), tp_size=1, pp_size=1)


def test_older_releases_are_asked_with_the_tp_rank_alone() -> None:
    request = HandshakeRequest(tp_rank=1)
    encoded = encode_handshake_request(request, tp_size=2, pp_size=1, form=RequestForm.RANK)
    assert msgspec.msgpack.decode(encoded) == [b"get_meta_msg", 1]


@pytest.mark.parametrize(("pp_rank", "tp_rank"), [(0, 1), (1, 0), (-1, 0), (0, -1), (0, 10**9)])
def test_a_rank_that_does_not_exist_is_never_asked(pp_rank: int, tp_rank: int) -> None:
    with pytest.raises(LocalProtocolError):
        encode_handshake_request(
            HandshakeRequest(pp_rank=pp_rank, tp_rank=tp_rank), tp_size=1, pp_size=1
        )


def test_a_pipeline_rank_cannot_be_asked_of_a_release_that_knows_none() -> None:
    with pytest.raises(LocalProtocolError):
        encode_handshake_request(
            HandshakeRequest(pp_rank=1), tp_size=1, pp_size=2, form=RequestForm.RANK
        )


@given(st.integers(0, 63), st.integers(0, 63))
def test_a_request_comes_back_as_it_went(pp_rank: int, tp_rank: int) -> None:
    request = HandshakeRequest(pp_rank=pp_rank, tp_rank=tp_rank)
    encoded = encode_handshake_request(request, tp_size=64, pp_size=64)
    assert request == decode_handshake_request(encoded)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"get_meta_msg",
        msgspec.msgpack.encode((b"get_meta_msg", 0)),
        msgspec.msgpack.encode((b"get_meta_msg", 0, 0, 0)),
        msgspec.msgpack.encode((b"other", 0, 0)),
        msgspec.msgpack.encode(("get_meta_msg", "0", 0)),
        msgspec.msgpack.encode({"a": 1}),
        b"\x91" * 10_000,
    ],
)
def test_a_malformed_request_is_an_error_that_a_listener_can_count(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_handshake_request(frame)


@given(st.binary(max_size=64))
def test_any_other_bytes_are_no_request(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_handshake_request(frame)


# --- handshake replies ----------------------------------------------------------------------------


def test_a_payload_is_a_map_of_hash_and_bytes() -> None:
    payload = HandshakePayload(compatibility_hash="93cf", agent_metadata_bytes=b"\x00")
    encoded = msgspec.msgpack.encode(payload)
    assert msgspec.msgpack.decode(encoded) == {
        "compatibility_hash": "93cf",
        "agent_metadata_bytes": b"\x00",
    }
    assert payload == decode_handshake_payload(encoded)


def test_fields_of_metadata_that_are_not_ours_are_skipped() -> None:
    encoded = msgspec.msgpack.encode(
        {
            "engine_id": "e",
            "agent_metadata": b"nixl",
            "kv_caches_base_addr": [2**47],
            "device_id": 0,
            "num_blocks": 64,
            "block_lens": [32768],
            "kv_cache_layout": "HND",
            "block_size": 32,
            "ssm_sizes": [0, 0],
            "packed_member_layouts": {},
        }
    )
    metadata = decode_agent_metadata(encoded)
    assert metadata.kv_caches_base_addr == (2**47,)
    assert (metadata.engine_id, metadata.agent_metadata) == ("e", b"nixl")


@pytest.mark.parametrize("frame", [b"", b"\xc1", b"\x80", msgspec.msgpack.encode([1])])
def test_a_malformed_reply_is_the_peers_fault(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_handshake_payload(frame)
    with pytest.raises(RemoteProtocolError) as caught:
        decode_agent_metadata(frame)
    assert caught.value.field == "agent_metadata_bytes"


def test_a_clock_is_a_number_of_seconds() -> None:
    assert decode_clock(msgspec.msgpack.encode(12.5)) == 12.5
    with pytest.raises(RemoteProtocolError):
        decode_clock(msgspec.msgpack.encode("12.5"))


# --- connector versions ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "connector", "form"),
    [
        ("0.22.1", 4, RequestForm.RANK),
        ("0.26.0", 5, RequestForm.PP_AND_TP_RANK),
        ("0.32.0", 14, RequestForm.PP_AND_TP_RANK),
        ("0.32.0+cpu", 14, RequestForm.PP_AND_TP_RANK),
        ("0.33.1rc2.dev3+gabc", 15, RequestForm.PP_AND_TP_RANK),
        ("0.21.0", 3, None),
        ("0.25.0", None, None),
    ],
)
def test_a_release_is_found_by_its_version(
    version: str, connector: int | None, form: RequestForm | None
) -> None:
    release = connector_release(version)
    assert release is not None
    assert (connector, form) == (release.version, release.form)


@pytest.mark.parametrize("version", ["", "0.99.0", "1.0.0", "dev", "0", "v0.32.0", "0.3211111.0"])
def test_of_a_release_nobody_has_read_nothing_is_assumed(version: str) -> None:
    assert connector_release(version) is None


def test_whoever_cannot_be_asked_has_no_form_and_leases_came_with_0_22() -> None:
    for release in CONNECTOR_HISTORY:
        assert release.has_lease == (release.release >= (0, 22))
        if release.counts_late_reads:
            assert release.scans_all_leases
