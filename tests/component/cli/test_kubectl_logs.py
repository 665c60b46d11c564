"""Logs of several pods, over a port that a script plays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from pdcluster_cli.kubectl.answers import error_of
from pdcluster_cli.kubectl.errors import (
    ForbiddenError,
    ObjectMissingError,
    ServerError,
    UnreachableError,
)
from pdcluster_cli.kubectl.options import LogOptions, Part
from pdcluster_cli.kubectl.pod_logs import PodLogs
from pdcluster_cli.kubectl.raw import Raw

FOLLOW = LogOptions(follow=True)
LOOK_S = 0.01


def stamp(second: int, text: str) -> bytes:
    return f"2026-11-29T12:00:{second:02}.000000000Z {text}\n".encode()


class Script:
    """An API server with pods whose logs a test writes.

    A stream gives what `logs` holds for its pod from the second on that was asked for, then what
    `ends` says: None lets it stay open, "" ends it, an error breaks it off (once).
    """

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.logs: dict[str, list[bytes]] = {}
        self.ends: dict[str, Any] = {}
        self.is_there = True
        self.list_error: Exception | None = None
        self.queries: list[tuple[str, dict[str, str]]] = []
        self.written = bytearray()
        self.said: list[str] = []

    def add(self, name: str, *, component: str = "engine", number: int = 1, end: Any = "") -> None:
        is_running = end is None
        self.pods[name] = {
            "metadata": {"name": name, "labels": {"app.kubernetes.io/component": component}},
            "status": {
                "containerStatuses": [
                    {
                        "name": component,
                        "containerID": f"containerd://{name}/{number}",
                        "state": {"running" if is_running else "terminated": {}},
                    }
                ]
            },
        }
        self.ends[name] = end

    async def get(self, path: str, query: Sequence[tuple[str, str]] = ()) -> Raw:
        del query
        if path.endswith("/pods"):
            if self.list_error is not None:
                raise self.list_error
            return {"items": list(self.pods.values())}
        if self.is_there and path.endswith("/pdclusters/qwen"):
            return {}
        raise error_of(path, 404, '{"kind": "Status", "message": "not found"}')

    async def stream(
        self, path: str, query: Sequence[tuple[str, str]] = ()
    ) -> AsyncIterator[bytes]:
        name = path.split("/")[-2]
        asked = dict(query)
        self.queries.append((name, asked))
        since = asked.get("sinceTime", "")[:-1].encode()
        for line in list(self.logs.get(name, ())):
            if line[: len(since)] >= since:
                yield line
        end = self.ends[name]
        if isinstance(end, Exception):
            self.ends[name] = None
            raise end
        if end is None:
            await asyncio.Event().wait()

    def reader(self, options: LogOptions) -> PodLogs:
        return PodLogs(
            self,
            "serving",
            "qwen",
            options,
            write=self.written.extend,
            say=self.said.append,
            look_s=LOOK_S,
        )

    @property
    def lines(self) -> list[str]:
        return self.written.decode().splitlines()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - what a test waits for has no event
            await asyncio.sleep(0.005)


class Following:
    """A follower in the background, cancelled at the end."""

    def __init__(self, script: Script, options: LogOptions = FOLLOW) -> None:
        self._logs = script.reader(options)

    async def __aenter__(self) -> asyncio.Task[None]:
        self._task = asyncio.create_task(self._logs.follow())
        return self._task

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def test_each_pod_s_log_is_read_once_in_order() -> None:
    script = Script()
    for name in ("qwen-b", "qwen-a"):
        script.add(name)
        script.logs[name] = [stamp(1, f"one of {name}"), stamp(2, "two")]
    assert await script.reader(LogOptions(tail=5)).read()
    assert script.lines == [
        "[qwen-a] one of qwen-a",
        "[qwen-a] two",
        "[qwen-b] one of qwen-b",
        "[qwen-b] two",
    ]
    assert all(query["tailLines"] == "5" for _, query in script.queries)
    assert script.said == []


async def test_a_log_that_can_t_be_read_is_told_and_the_others_are_read() -> None:
    script = Script()
    waiting = error_of("/", 400, '{"kind": "Status", "message": "is waiting to start"}')
    script.add("qwen-a", end=waiting)
    script.add("qwen-b")
    script.logs["qwen-b"] = [stamp(1, "hello").removesuffix(b"\n")]
    assert not await script.reader(LogOptions()).read()
    assert script.lines == ["[qwen-b] hello"]
    (said,) = script.said
    assert said.startswith("[qwen-a] its log can't be read: ")
    assert "is waiting to start" in said


LOG = "/api/v1/namespaces/serving/pods/qwen-a/log"


def log_error(said: str) -> Exception:
    return error_of(LOG, 400, json.dumps({"kind": "Status", "message": said}))


async def test_that_nothing_was_started_anew_is_no_failure() -> None:
    script = Script()
    said = 'previous terminated container "engine" in pod "qwen-a" not found'
    script.add("qwen-a", end=log_error(said))
    script.add("qwen-b")
    script.logs["qwen-b"] = [stamp(1, "it crashed")]
    assert await script.reader(LogOptions(previous=True)).read()
    assert script.said == ["[qwen-a] has no previous container"]
    assert script.lines == ["[qwen-b] it crashed"]


@pytest.mark.parametrize("follow", [False, True])
async def test_a_container_that_has_not_started_says_why(follow: bool) -> None:
    script = Script()
    said = 'container "engine" in pod "qwen-a" is waiting to start: image can\'t be pulled'
    script.add("qwen-a", end=log_error(said))
    if follow:
        async with Following(script):
            await until(lambda: bool(script.said))
    else:
        assert not await script.reader(LogOptions()).read()
    assert script.said == ["[qwen-a] has not started: image can't be pulled"]


async def test_no_pods_are_told() -> None:
    script = Script()
    assert not await script.reader(LogOptions(part=Part.DECODE)).read()
    assert script.said == [
        "PDCluster qwen (decode) has no pods; `kubectl pdcluster status` says why"
    ]


async def test_followed_logs_come_side_by_side_and_new_pods_join() -> None:
    script = Script()
    script.add("qwen-a", end=None)
    script.logs["qwen-a"] = [stamp(1, "old")]
    async with Following(script):
        await until(lambda: script.lines == ["[qwen-a] old"])
        script.logs["qwen-b"] = [stamp(2, "new")]
        script.add("qwen-b", end=None)
        await until(lambda: "[qwen-b] new" in script.lines)
    queries = dict(script.queries)
    assert "tailLines" in queries["qwen-a"]
    assert "tailLines" not in queries["qwen-b"], "all of a new pod's log is wanted"


async def test_a_container_that_is_started_again_is_followed_again() -> None:
    script = Script()
    script.add("qwen-a", end="")
    script.logs["qwen-a"] = [stamp(1, "first")]
    async with Following(script):
        await until(lambda: script.lines == ["[qwen-a] first"])
        await asyncio.sleep(LOOK_S * 5)
        assert len(script.queries) == 1, "what has ended is not read again"
        script.logs["qwen-a"] = [stamp(2, "second")]
        script.add("qwen-a", number=2, end=None)
        await until(lambda: script.lines == ["[qwen-a] first", "[qwen-a] second"])


@pytest.mark.parametrize("error", [UnreachableError("gone"), ServerError("502")])
async def test_a_stream_that_breaks_off_goes_on_where_it_was(error: Exception) -> None:
    script = Script()
    script.add("qwen-a", end=None)
    script.ends["qwen-a"] = error
    script.logs["qwen-a"] = [stamp(1, "one"), stamp(2, "two")]
    async with Following(script):
        await until(lambda: len(script.queries) == 1)
        script.logs["qwen-a"].append(stamp(2, "three").replace(b".0", b".5"))
        await until(lambda: len(script.lines) == 3)
        await asyncio.sleep(LOOK_S * 5)
    assert script.lines == ["[qwen-a] one", "[qwen-a] two", "[qwen-a] three"]
    assert script.queries[-1][1]["sinceTime"] == "2026-11-29T12:00:02Z"
    assert len(script.said) == 1


async def test_a_server_that_is_away_is_told_once_and_waited_for() -> None:
    script = Script()
    script.list_error = UnreachableError("nobody answers")
    async with Following(script):
        await until(lambda: bool(script.said))
        await asyncio.sleep(LOOK_S * 10)
        assert script.said == ["nobody answers; trying again"]
        script.list_error = None
        script.logs["qwen-a"] = [stamp(1, "here")]
        script.add("qwen-a", end=None)
        await until(lambda: script.lines == ["[qwen-a] here"])


async def test_pods_that_do_not_exist_yet_are_waited_for() -> None:
    script = Script()
    async with Following(script) as task:
        await until(lambda: bool(script.said))
        await asyncio.sleep(LOOK_S * 10)
        assert script.said == ["PDCluster qwen has no pods; waiting for them"]
        assert not task.done()


async def test_following_ends_with_the_cluster() -> None:
    script = Script()
    script.add("qwen-a", end="")
    task = asyncio.create_task(script.reader(FOLLOW).follow())
    await until(lambda: bool(script.queries))
    script.is_there, script.pods = False, {}
    await asyncio.wait_for(task, 10)
    assert script.said[-1] == "PDCluster qwen is gone"


async def test_a_pod_that_is_gone_is_let_go() -> None:
    script = Script()
    script.add("qwen-a", end=ObjectMissingError('pods "qwen-a" not found'))
    async with Following(script) as task:
        await until(lambda: bool(script.queries))
        await asyncio.sleep(LOOK_S * 5)
        assert len(script.queries) == 1
        assert not task.done()


@pytest.mark.parametrize("where", ["list", "stream"])
async def test_whoever_may_not_read_logs_is_told_at_once(where: str) -> None:
    script = Script()
    error = ForbiddenError("you may not")
    script.add("qwen-a", end=error if where == "stream" else None)
    script.list_error = error if where == "list" else None
    with pytest.raises(ForbiddenError):
        await asyncio.wait_for(script.reader(FOLLOW).follow(), 10)


async def test_a_reader_that_has_seen_enough_ends_it() -> None:
    script = Script()
    script.add("qwen-a", end=None)
    script.logs["qwen-a"] = [stamp(1, "x")]

    def closed(_: bytes) -> None:
        raise BrokenPipeError

    logs = PodLogs(
        script, "serving", "qwen", FOLLOW, write=closed, say=script.said.append, look_s=LOOK_S
    )
    with pytest.raises(BrokenPipeError):
        await asyncio.wait_for(logs.follow(), 10)
