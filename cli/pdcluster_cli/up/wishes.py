"""What a resource wishes for, and the programs that would fulfil it.

Pure. Two wishes are compared program by program: a member whose program would be the same stays,
whatever else has changed in the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from pdcluster_api.proxy_config import Role
from pdcluster_api.revision import revision_of
from pdcluster_api.v1alpha1 import PDCluster
from pdcluster_cli.up.lifecycle import Phase
from pdcluster_cli.up.snapshot import Kind, Member, Program, Snapshot, Stop, host_of, kind_of
from pdcluster_operator.program.engine import engine_programs
from pdcluster_operator.program.programs import Placement, ProxyPlacement, ProxyProgram
from pdcluster_operator.program.proxy import proxy_program

__all__ = ["EngineSource", "Site", "Wish", "retargeted", "wish_for"]

_ANYWHERE: Final = "0.0.0.0"
"""Stands for "wherever it runs" where two programs are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSource:
    """Where engines come from.

    Attributes:
        label: For people: ``simulator``, ``vLLM``.
        command: Program and first words, before the model.
        args: Further words, before the resource's own.
        env: Environment it needs on this machine.
        cwd: Folder to run in, so that a model may be a folder's name; None for the current one.
    """

    label: str
    command: tuple[str, ...]
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    cwd: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What this machine and this run give the programs.

    Attributes:
        source: Where engines come from.
        proxy_command: Program and first words of the proxy.
        proxy_port: Port for clients, on 127.0.0.1.
        admin_port: The first proxy's admin port, on 127.0.0.1.
        proxy_workers: Worker processes of the proxy; 0 is one per core.
        run_dir: Folder of this run.
        scratch_dir: Folder of the engines' caches; each revision has one below it.
        models_dir: Folder of downloaded models.
    """

    source: EngineSource
    proxy_command: tuple[str, ...]
    proxy_port: int
    admin_port: int
    proxy_workers: int
    run_dir: str
    scratch_dir: str
    models_dir: str

    @property
    def endpoints_file(self) -> str:
        """Where the proxy finds the live list of engines."""
        return f"{self.run_dir}/endpoints.json"

    def engine_place(self, host: str, revision: str) -> Placement:
        """Return where an engine of a revision runs at ``host``."""
        return Placement(
            host=host,
            command=self.source.command,
            scratch_dir=f"{self.scratch_dir}/{revision}",
            models_dir=self.models_dir,
            args=self.source.args,
            env=self.source.env,
        )

    def proxy_place(self, name: str, admin_host: str, *, replaces: bool = False) -> ProxyPlacement:
        """Return where a proxy runs.

        Old and new proxy share the clients' port for a moment; their admin pages differ in address.
        """
        return ProxyPlacement(
            host="127.0.0.1",
            port=self.proxy_port,
            admin_host=admin_host,
            admin_port=self.admin_port,
            command=self.proxy_command,
            config_file=f"{self.run_dir}/{name}.json",
            endpoints_file=self.endpoints_file,
            workers=self.proxy_workers,
            replaces=replaces,
            # Nothing balances load in front of it, so nobody has to notice first.
            drain_s=0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a resource wishes for.

    Attributes:
        cluster: The resource.
        site: Where it runs.
        identities: Per kind, what its program is apart from its place.
        counts: Per kind, how many.
    """

    cluster: PDCluster
    site: Site
    identities: dict[Kind, str]
    counts: dict[Kind, int]


def wish_for(cluster: PDCluster, site: Site) -> Wish:
    """Return what a resource wishes for.

    Raises:
        TimingError: The lease settings leave no time for a hand-off.
    """
    anywhere = site.engine_place(_ANYWHERE, revision_of(cluster.spec))
    engines = engine_programs(cluster, lambda _role, _index: anywhere)
    proxy = proxy_program(cluster, site.proxy_place("proxy", _ANYWHERE))
    identities = {Kind.PROXY: _identity(proxy)}
    counts = {Kind.PREFILL: 0, Kind.DECODE: 0, Kind.PROXY: 1}
    for engine in engines:
        kind = kind_of(engine.role)
        counts[kind] += 1
        identities.setdefault(kind, _identity(replace(engine, name="")))
    return Wish(cluster=cluster, site=site, identities=identities, counts=counts)


def _identity(program: Program) -> str:
    return hashlib.sha256(repr(program).encode()).hexdigest()


def retargeted(
    snapshot: Snapshot, wish: Wish, *, now: float, address: Callable[[Iterable[str]], str]
) -> Snapshot:
    """Return the snapshot with the wish as its target; nothing is started or stopped yet.

    Args:
        snapshot: The snapshot so far.
        wish: What is wished for now.
        now: Monotonic seconds.
        address: Gives a free loopback address, apart from those it is told.
    """
    members = list(snapshot.members)
    for kind in Kind:
        kept = _kept(members, kind, wish)
        members = [
            replace(member, wanted=member.name in kept) if member.kind is kind else member
            for member in members
        ]
        for _ in range(wish.counts[kind] - len(kept)):
            members.append(_recruit(members, kind, wish, now=now, address=address))
    return replace(
        snapshot,
        members=tuple(members),
        settle_s=float(wish.cluster.spec.drain.settle_seconds),
    )


def _kept(members: list[Member], kind: Kind, wish: Wish) -> set[str]:
    usable = [
        member
        for member in members
        if member.kind is kind
        and member.identity == wish.identities.get(kind)
        and member.phase is not Phase.DRAINING
        and member.stop is Stop.NOT
        and (member.wanted or member.is_alive)
    ]
    # Those that serve stay rather than those that are still to start.
    usable.sort(key=lambda member: member.phase is not Phase.READY)
    return {member.name for member in usable[: wish.counts[kind]]}


def _recruit(
    members: list[Member],
    kind: Kind,
    wish: Wish,
    *,
    now: float,
    address: Callable[[Iterable[str]], str],
) -> Member:
    names = {member.name for member in members}
    taken = {_host(member) for member in members}
    if kind is Kind.PROXY:
        name = _free_name("proxy", names, first_is_bare=True)
        # The admin page is where people expect it as soon as no other proxy has it there: two of
        # them take turns.
        replaces = any(member.kind is Kind.PROXY and member.is_alive for member in members)
        admin_host = address(taken) if "127.0.0.1" in taken else "127.0.0.1"
        place_of_proxy = wish.site.proxy_place(name, admin_host, replaces=replaces)
        program: Program = proxy_program(wish.cluster, place_of_proxy)
    else:
        name = _free_name(kind.value, names, first_is_bare=False)
        place = wish.site.engine_place(address(taken), revision_of(wish.cluster.spec))
        program = next(
            engine
            for engine in engine_programs(wish.cluster, lambda _role, _index: place)
            if engine.role is Role(kind.value)
        )
    return Member(
        name=name,
        kind=kind,
        identity=wish.identities[kind],
        program=replace(program, name=name),
        since=now,
        launch_at=now,
    )


def _free_name(word: str, names: set[str], *, first_is_bare: bool) -> str:
    candidates = (
        word if first_is_bare and index == 0 else f"{word}-{index}"
        for index in range(len(names) + 1)
    )
    return next(name for name in candidates if name not in names)


def _host(member: Member) -> str:
    """Return the address that is a member's own: an engine's, or that of a proxy's admin page."""
    program = member.program
    return program.config.admin.host if isinstance(program, ProxyProgram) else host_of(program)
