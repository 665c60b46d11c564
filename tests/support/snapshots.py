"""Builders of snapshots and members for tests of ``pdcluster up``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pdcluster_api.proxy_config import Role
from pdcluster_cli.up.lifecycle import Phase
from pdcluster_cli.up.snapshot import Kind, Member, Program, Snapshot
from pdcluster_cli.up.wishes import EngineSource, Site, Wish, wish_for
from pdcluster_operator.program.engine import engine_programs
from pdcluster_operator.program.proxy import proxy_program
from tests.support.resources import cluster

SITE = Site(
    source=EngineSource(label="stand-in", command=("engine",)),
    proxy_command=("proxy",),
    proxy_port=8080,
    admin_port=9090,
    proxy_workers=1,
    run_dir="/run",
    scratch_dir="/scratch",
    models_dir="/models",
)


def next_address(taken: Iterable[str]) -> str:
    """Return the first loopback address that is not taken."""
    ours = set(taken)
    return next(host for n in range(2, 250) if (host := f"127.0.0.{n}") not in ours)


def wish(*, site: Site = SITE, **fields: Any) -> Wish:
    """Return the wish of a minimal resource with the given fields of its spec."""
    return wish_for(cluster(**fields), site)


def program(kind: Kind, host: str = "127.0.0.2") -> Program:
    """Return a program of a kind."""
    if kind is Kind.PROXY:
        return proxy_program(cluster(), SITE.proxy_place("proxy", host))
    place = SITE.engine_place(host, "rev")
    return next(
        engine
        for engine in engine_programs(cluster(), lambda _role, _index: place)
        if engine.role is Role(kind.value)
    )


def member(kind: Kind = Kind.PREFILL, phase: Phase = Phase.READY, **fields: Any) -> Member:
    """Return a member; one that serves unless said otherwise."""
    given: dict[str, Any] = {
        "name": f"{kind.value}-0",
        "kind": kind,
        "identity": "one",
        "program": program(kind),
        "phase": phase,
        "since": 0.0,
        "launches": 1,
        "was_ready": phase in {Phase.READY, Phase.DRAINING},
        "pid": None if phase is Phase.EXITED else 1000,
    }
    return Member(**given | fields)


def snapshot(*members: Member, **fields: Any) -> Snapshot:
    """Return a snapshot of members."""
    given: dict[str, Any] = {"members": members, "settle_s": 5.0}
    return Snapshot(**given | fields)
