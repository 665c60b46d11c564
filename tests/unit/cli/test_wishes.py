from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.resources import ENGINE
from tests.support.snapshots import SITE, next_address, snapshot, wish

from pdcluster_cli.up.lifecycle import Phase
from pdcluster_cli.up.snapshot import Kind, Snapshot, Stop, host_of
from pdcluster_cli.up.wishes import EngineSource, retargeted
from pdcluster_lease.errors import TimingError
from pdcluster_operator.program.programs import EngineProgram, ProxyProgram


def aimed(current: Snapshot, now: float = 0.0, **fields: Any) -> Snapshot:
    return retargeted(current, wish(**fields), now=now, address=next_address)


def serving(**fields: Any) -> Snapshot:
    """Return a snapshot that has fulfilled a wish."""
    started = aimed(snapshot(), **fields)
    return replace(
        started,
        members=tuple(
            replace(one, phase=Phase.READY, was_ready=True, launches=1, launch_at=None)
            for one in started.members
        ),
    )


def names(current: Snapshot, *, wanted: bool = True) -> list[str]:
    return [one.name for one in current.members if one.wanted is wanted]


ALL = ["prefill-0", "prefill-1", "decode-0", "decode-1", "proxy"]


def test_an_empty_snapshot_gets_all_that_is_wished_for_to_be_launched_now() -> None:
    current = aimed(snapshot(), now=7.0)
    assert names(current) == ALL
    assert {one.launch_at for one in current.members} == {7.0}
    assert {one.phase for one in current.members} == {Phase.EXITED}


def test_each_engine_has_an_address_of_its_own_and_the_proxy_the_usual_one() -> None:
    current = aimed(snapshot())
    hosts = [host_of(one.program) for one in current.members]
    assert hosts == ["127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5", "127.0.0.1"]
    proxy = current.members[-1].program
    assert isinstance(proxy, ProxyProgram)
    assert proxy.config.admin.host == "127.0.0.1"
    assert not proxy.config.listen.shared
    assert proxy.config.endpoints_file == "/run/endpoints.json"
    assert proxy.argv == ("proxy", "--config", "/run/proxy.json")


def test_the_same_wish_again_changes_nothing() -> None:
    current = serving()
    assert aimed(current) == current


def test_more_replicas_add_members_and_leave_the_others() -> None:
    current = aimed(serving(), decode={"replicas": 4})
    assert names(current) == [*ALL, "decode-2", "decode-3"]
    assert names(current, wanted=False) == []


def test_fewer_replicas_let_members_go_those_that_serve_stay() -> None:
    current = serving(decode={"replicas": 3})
    broken = current.member("decode-0")
    assert broken is not None
    current = current.with_member(replace(broken, phase=Phase.LOADING))
    current = aimed(current, decode={"replicas": 2})
    assert names(current, wanted=False) == ["decode-0"]


@pytest.mark.parametrize(
    "fields",
    [
        {"kvTransfer": {"kvLeaseDurationSeconds": 60}},
        {"engine": ENGINE | {"args": ["--x"]}},
        {"decode": {"args": ["--x"]}},
    ],
    ids=str,
)
def test_another_revision_replaces_both_roles(fields: dict[str, Any]) -> None:
    current = aimed(serving(), **fields)
    engines = [name for name in ALL if name != "proxy"]
    assert [name for name in names(current, wanted=False) if name != "proxy"] == engines
    assert {"prefill-2", "prefill-3", "decode-2", "decode-3"} <= set(names(current))
    for one in current.members:
        if one.wanted and isinstance(one.program, EngineProgram):
            assert host_of(one.program) not in {"127.0.0.2", "127.0.0.3", "127.0.0.4"}


def test_what_only_the_proxy_is_told_replaces_only_the_proxy() -> None:
    current = aimed(serving(), proxy={"idleTimeoutSeconds": 5})
    assert names(current, wanted=False) == ["proxy"]
    assert names(current)[-1] == "proxy-1"
    replacement = current.member("proxy-1")
    assert replacement is not None
    assert isinstance(replacement.program, ProxyProgram)
    config = replacement.program.config
    # Clients' port is shared for a moment; the admin page cannot be.
    assert config.listen.port == 8080
    assert config.listen.shared
    assert config.admin.host not in {"127.0.0.1", "127.0.0.2"}


def test_proxies_that_replace_one_another_take_turns_with_the_usual_admin_address() -> None:
    current, admins = serving(), []
    for seconds in (5, 6, 7):
        current = aimed(current, proxy={"idleTimeoutSeconds": seconds})
        (old,) = [one for one in current.members if one.kind is Kind.PROXY and not one.wanted]
        (new,) = [one for one in current.members if one.kind is Kind.PROXY and one.wanted]
        assert isinstance(new.program, ProxyProgram)
        # Whatever admin address the old one has, its clients' port is shared.
        assert new.program.config.listen.shared
        admins.append(new.program.config.admin.host)
        members = tuple(
            replace(one, phase=Phase.READY, launches=1)
            for one in current.members
            if one.name != old.name
        )
        current = replace(current, members=members)
    assert admins[1] == "127.0.0.1"
    assert admins[0] == admins[2] != "127.0.0.1"


def test_a_field_no_program_is_told_of_changes_nothing() -> None:
    assert aimed(serving(), ratio={"maxPrefillPerDecode": "3:1"}).members == serving().members


def test_taking_an_edit_back_keeps_the_old_and_drops_the_new() -> None:
    before = serving()
    edited = aimed(before, kvTransfer={"kvLeaseDurationSeconds": 60})
    back = aimed(edited)
    assert names(back) == ALL
    assert {"prefill-2", "decode-2", "proxy-1"} <= set(names(back, wanted=False))


def test_one_that_is_draining_or_was_asked_to_stop_is_not_taken_back() -> None:
    current = serving()
    draining, asked = current.member("prefill-0"), current.member("prefill-1")
    assert draining is not None
    assert asked is not None
    current = current.with_member(replace(draining, phase=Phase.DRAINING, wanted=False))
    current = current.with_member(replace(asked, stop=Stop.ASKED, wanted=False))
    assert [name for name in names(aimed(current)) if "prefill" in name] == [
        "prefill-2",
        "prefill-3",
    ]


def test_one_that_waits_for_its_back_off_is_kept() -> None:
    current = serving()
    ended = current.member("decode-1")
    assert ended is not None
    current = current.with_member(replace(ended, phase=Phase.EXITED, launch_at=50.0))
    assert aimed(current) == current


def test_both_roles_asleep_leave_the_proxy() -> None:
    current = aimed(serving(), prefill={"replicas": 0}, decode={"replicas": 0})
    assert [name for name in names(current) if not name.startswith("proxy")] == []


def test_the_settle_time_is_the_resources() -> None:
    assert aimed(snapshot(), drain={"settleSeconds": 2}).settle_s == 2.0


def test_an_impossible_lease_is_no_wish() -> None:
    with pytest.raises(TimingError):
        wish(kvTransfer={"kvLeaseDurationSeconds": 6})


def test_engines_from_elsewhere_are_other_programs() -> None:
    elsewhere = replace(SITE, source=EngineSource(label="x", command=("other",)))
    assert wish(site=elsewhere).identities[Kind.PREFILL] != wish().identities[Kind.PREFILL]
    assert wish(site=elsewhere).identities[Kind.PROXY] == wish().identities[Kind.PROXY]


def test_caches_are_kept_apart_by_revision() -> None:
    current = aimed(snapshot())
    program = current.members[0].program
    assert isinstance(program, EngineProgram)
    assert dict(program.env)["XDG_CACHE_HOME"] == f"/scratch/{program.revision}/cache"
