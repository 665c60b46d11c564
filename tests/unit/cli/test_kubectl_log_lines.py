"""Lines of several pods' logs: which are read, how they are cut and named."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcluster_cli.kubectl.log_lines import (
    LINE_MAX_BYTES,
    LineCutter,
    Source,
    due_sources,
    log_query,
    sources,
)
from pdcluster_cli.kubectl.options import LogOptions, Part
from pdcluster_cli.kubectl.pod_logs import selector_of

T1 = b"2026-11-29T12:00:00.000000001Z"
T2 = b"2026-11-29T12:00:00.000000002Z"
T3 = b"2026-11-29T12:00:01.500000000Z"


def pod(name: str, component: str = "engine", **statuses: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"app.kubernetes.io/component": component}},
        "status": {
            "containerStatuses": [
                {"name": container, **status} for container, status in statuses.items()
            ]
        },
    }


RUNNING = {"containerID": "containerd://1", "state": {"running": {}}}
ENDED = {"containerID": "containerd://2", "state": {"terminated": {"exitCode": 1}}}
WAITING = {"state": {"waiting": {"reason": "ContainerCreating"}}}


def test_ours_is_the_container_named_like_its_component() -> None:
    found = sources(
        [
            pod("b", engine=RUNNING, istio=ENDED),
            pod("a", "proxy", proxy=ENDED),
            pod("stranger", "something", something=RUNNING),
            pod("c", engine=WAITING),
            {},
        ]
    )
    assert found == (
        Source(pod="a", container="proxy", id="containerd://2"),
        Source(pod="b", container="engine", id="containerd://1", is_running=True),
        Source(pod="c", container="engine"),
    )


def due(source: Source, *, is_open: bool = False, has_ended: bool = False) -> bool:
    ids = frozenset({source.id})
    found = due_sources(
        [source],
        open_ids=ids if is_open else frozenset(),
        ended_ids=ids if has_ended else frozenset(),
    )
    return found == (source,)


def test_what_is_followed_next() -> None:
    (running,), (ended,), (waiting,) = (
        sources([pod("a", engine=status)]) for status in (RUNNING, ENDED, WAITING)
    )
    assert due(running)
    assert due(ended)
    assert not due(waiting)
    assert not due(running, is_open=True)
    assert due(running, has_ended=True), "its stream ended, it goes on: the kubelet was restarted"
    assert not due(ended, has_ended=True)


@pytest.mark.parametrize(
    ("options", "more", "expected"),
    [
        (LogOptions(), {}, {"tailLines": "20"}),
        (LogOptions(tail=-1), {}, {}),
        (LogOptions(tail=0), {}, {"tailLines": "0"}),
        (LogOptions(previous=True), {}, {"previous": "true", "tailLines": "20"}),
        (LogOptions(follow=True), {}, {"follow": "true", "tailLines": "20"}),
        (LogOptions(follow=True), {"is_new": True}, {"follow": "true"}),
        (
            LogOptions(follow=True),
            {"since": T3.decode()},
            {"follow": "true", "sinceTime": "2026-11-29T12:00:01Z"},
        ),
    ],
)
def test_what_is_asked_of_the_api(
    options: LogOptions, more: dict[str, Any], expected: dict[str, str]
) -> None:
    source = Source(pod="a", container="engine", id="1")
    query = dict(log_query(source, options, **more))
    assert query == {"container": "engine", "timestamps": "true", **expected}


@pytest.mark.parametrize(
    ("part", "selector"),
    [
        (None, "pdcluster.io/cluster=qwen"),
        (Part.PROXY, "app.kubernetes.io/component=proxy,pdcluster.io/cluster=qwen"),
        (
            Part.PREFILL,
            (
                "app.kubernetes.io/component=engine,pdcluster.io/cluster=qwen,"
                "pdcluster.io/role=prefill"
            ),
        ),
    ],
)
def test_whose_logs_are_read(part: Part | None, selector: str) -> None:
    assert selector_of("qwen", part) == selector


def test_lines_get_their_pod_s_name_and_lose_their_stamp() -> None:
    cutter = LineCutter("qwen-decode-1")
    assert cutter.feed(T1 + b" first\n" + T2 + b" se") == b"[qwen-decode-1] first\n"
    assert cutter.feed(b"cond\r\n") == b"[qwen-decode-1] second\n"
    assert cutter.last == T2.decode()
    assert cutter.end() == b""


def test_a_last_line_without_its_end_is_shown_too() -> None:
    cutter = LineCutter("p")
    assert cutter.feed(T1 + b" cut") == b""
    assert cutter.end() == b"[p] cut\n"
    assert cutter.end() == b""


def test_lines_of_one_moment_are_all_shown() -> None:
    assert LineCutter("p").feed(T1 + b" a\n" + T1 + b" b\n") == b"[p] a\n[p] b\n"


def test_a_resumed_stream_does_not_repeat_what_was_shown() -> None:
    cutter = LineCutter("p", since=T2.decode())
    assert cutter.feed(T1 + b" a\n" + T2 + b" b\n" + T3 + b" c\n") == b"[p] c\n"


def test_a_line_without_a_stamp_and_an_empty_one_are_shown_as_they_are() -> None:
    cutter = LineCutter("p")
    assert cutter.feed(b"unable to retrieve\n\n" + T1 + b" \n" + T2 + b"\n") == (
        b"[p] unable to retrieve\n[p] \n[p] \n[p] \n"
    )


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    cutter = LineCutter("p")
    shown = b"".join(cutter.feed(b"x" * 65_536) for _ in range(64)) + cutter.end()
    assert shown.count(b"x") == 64 * 65_536
    assert all(len(line) <= LINE_MAX_BYTES + 65_536 + 10 for line in shown.split(b"\n"))
    assert shown.count(b"\n") > 1


@given(
    lines=st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line), max_size=8),
    cuts=st.lists(st.integers(0, 300), max_size=6),
)
def test_wherever_a_stream_is_cut_its_lines_are_the_same(
    lines: list[bytes], cuts: list[int]
) -> None:
    whole = b"".join(T1 + b" " + line + b"\n" for line in lines)
    cutter = LineCutter("p")
    bounds = [0, *sorted(cut % (len(whole) + 1) for cut in cuts), len(whole)]
    shown = b"".join(cutter.feed(whole[start:end]) for start, end in itertools.pairwise(bounds))
    assert shown + cutter.end() == b"".join(
        b"[p] " + line.removesuffix(b"\r") + b"\n" for line in lines
    )
