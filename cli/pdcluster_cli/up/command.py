"""``pdcluster up``: the composition root of a run.

Shell: reads the file, finds the engine, checks ports, connects local cluster, screen, signals and
the watched file. Decides nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path

import watchfiles
from rich.console import Console

from pdcluster_api.support import kubernetes_only
from pdcluster_api.v1alpha1 import PDCluster
from pdcluster_cli.errors import CliError
from pdcluster_cli.exit_codes import ExitCode
from pdcluster_cli.files import load_file
from pdcluster_cli.options import EngineChoice, UpOptions
from pdcluster_cli.settings import Settings
from pdcluster_cli.up.addresses import WantedPort, free_address, require_free
from pdcluster_cli.up.edits import edit_message
from pdcluster_cli.up.engines import PROXY_COMMAND, find_simulator, find_vllm
from pdcluster_cli.up.local_cluster import LocalCluster
from pdcluster_cli.up.processes import Launcher
from pdcluster_cli.up.run_folders import make_run_dir
from pdcluster_cli.up.screen import Screen
from pdcluster_cli.up.snapshot import Ending
from pdcluster_cli.up.view import KEEPER_LINE, curl_line, serves
from pdcluster_cli.up.wishes import EngineSource, Site
from pdcluster_lease.errors import PDClusterError

__all__ = ["example_file", "run_up"]


def example_file() -> Path:
    """Return the packaged copy of the first example."""
    return Path(__file__).parents[1] / "example.yaml"


def run_up(
    options: UpOptions, *, settings: Settings, environ: Mapping[str, str], console: Console
) -> ExitCode:
    """Run a resource until it is told to stop, or cannot go on.

    Raises:
        PDClusterError: It could not even begin; nothing was started.
    """
    path = example_file() if options.file is None else Path(options.file)
    loaded = load_file(path)
    cluster = loaded.cluster
    source = _source(options.engine, settings, cluster)
    _require_ports(options, cluster)
    run_dir = make_run_dir(Path(options.state_dir or settings.state_dir), cluster.metadata.name)
    site = Site(
        source=source,
        proxy_command=PROXY_COMMAND,
        proxy_port=options.port,
        admin_port=options.admin_port,
        proxy_workers=options.workers,
        run_dir=str(run_dir),
        scratch_dir=f"{settings.cache_dir}/engines",
        models_dir=settings.models_dir,
    )
    with Screen(console) as screen:
        for line in _opening(path, loaded.skipped, cluster, source, run_dir):
            screen.told(line)
        return asyncio.run(
            _run(
                cluster,
                site=site,
                launcher=Launcher(run_dir=run_dir, environ=environ),
                screen=screen,
                watched=None if options.file is None else path.resolve(),
            )
        )


def _source(choice: EngineChoice, settings: Settings, cluster: PDCluster) -> EngineSource:
    if choice is EngineChoice.SIM:
        return find_simulator(settings)
    return find_vllm(settings, cluster)


def _require_ports(options: UpOptions, cluster: PDCluster) -> None:
    spec, here = cluster.spec, "127.0.0.1"
    require_free(
        (
            WantedPort(field="--port", number=options.port, purpose="clients", host=here),
            WantedPort(
                field="--admin-port",
                number=options.admin_port,
                purpose="the proxy's admin page",
                host=here,
            ),
            WantedPort(field="spec.engine.port", number=spec.engine.port, purpose="engines"),
            WantedPort(
                field="spec.kvTransfer.sideChannelPort",
                number=spec.kv_transfer.side_channel_port,
                purpose="the engines' side channel",
            ),
        ),
        num_engines=spec.prefill.num_engines + spec.decode.num_engines,
    )


def _opening(
    path: Path,
    skipped: tuple[str, ...],
    cluster: PDCluster,
    source: EngineSource,
    run_dir: Path,
) -> Iterable[str]:
    spec = cluster.spec
    engines = f"{spec.prefill.num_engines}P + {spec.decode.num_engines}D"
    yield f"{cluster.metadata.name} from {path}: {engines} ({source.label}) and a proxy."
    yield f"Logs: {run_dir / 'logs'}"
    yield KEEPER_LINE
    if skipped:
        yield f"Skipped documents of other kinds: {', '.join(skipped)}."
    ignored = [name for name in kubernetes_only(cluster) if name != "spec.engine.image"]
    if ignored:
        yield f"Only a Kubernetes cluster honours: {', '.join(ignored)}."


async def _run(
    cluster: PDCluster,
    *,
    site: Site,
    launcher: Launcher,
    screen: Screen,
    watched: Path | None,
) -> ExitCode:
    """Run until a signal or a failure; ``watched`` is an absolute path."""
    local = LocalCluster(
        cluster,
        site=site,
        launcher=launcher,
        address=lambda taken, ports: free_address(taken, ports=ports),
        listener=screen,
    )
    stopping = _Stopping(local, screen)
    local.start()
    tasks = [asyncio.create_task(_announce(local, screen, site))]
    if watched is not None:
        following = asyncio.create_task(_follow(watched, local, screen, stopping.begun))
        following.add_done_callback(lambda task: _tell_lost(task, screen, watched))
        tasks.append(following)
    failing = asyncio.create_task(local.wait_failed())
    told_to_stop = asyncio.create_task(stopping.begun.wait())
    try:
        await asyncio.wait((failing, told_to_stop), return_when=asyncio.FIRST_COMPLETED)
    finally:
        error = failing.result() if failing.done() else None
        for task in (*tasks, failing, told_to_stop):
            task.cancel()
        await local.stop()
        await stopping.end()
    if error is not None:
        screen.told(f"Error: {error}")
        return error.exit_code
    screen.told("Stopped; nothing is left running.")
    return ExitCode.WELL


class _Stopping:
    """What the signals have asked for: the first one drains, the second ends everything at once."""

    def __init__(self, local: LocalCluster, screen: Screen) -> None:
        self.begun = asyncio.Event()
        self._local = local
        self._screen = screen
        self._hurried: asyncio.Task[None] | None = None
        self._taken = {signal.SIGINT, signal.SIGTERM}
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            # What was started under `nohup` outlives its terminal.
            self._taken.add(signal.SIGHUP)
        for number in self._taken:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if self._hurried is not None or self._local.snapshot.ending is Ending.AT_ONCE:
            return
        if self.begun.is_set():
            self._screen.told("Stopping at once: whatever still runs is killed.")
            self._hurried = asyncio.ensure_future(self._local.stop(at_once=True))
            return
        self._screen.told(
            "Draining: no new requests, running answers finish. Ctrl-C again stops at once."
            if serves(self._local.snapshot)
            else "Stopping: nothing serves yet. Ctrl-C again stops at once."
        )
        self.begun.set()

    async def end(self) -> None:
        """Wait until all is stopped; from now on nothing can be interrupted any more."""
        if self._hurried is not None:
            await self._hurried
        for number in self._taken:
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)


async def _announce(local: LocalCluster, screen: Screen, site: Site) -> None:
    try:
        await local.wait_ready()
    except CliError:
        # wait_failed() tells it.
        return
    screen.told(
        f"Ready after {screen.elapsed_s:.1f} s: {local.url} "
        f"(admin: http://127.0.0.1:{site.admin_port}). Ask it something:\n"
        f"  {curl_line(local.url, _model(local.resource))}"
    )


def _model(cluster: PDCluster) -> str:
    return cluster.spec.model.served_name or cluster.spec.model.name


async def _follow(path: Path, local: LocalCluster, screen: Screen, stop: asyncio.Event) -> None:
    """Take over every edit of the file; a bad one is shown and changes nothing."""
    was_applied = True
    async with asyncio.TaskGroup() as announcing:
        # Editors replace files, so the folder is watched.
        async for changes in watchfiles.awatch(path.parent, stop_event=stop, recursive=False):
            if not any(Path(changed) == path for _, changed in changes):
                continue
            before, admin_url = local.resource, local.admin_url
            try:
                edit = local.apply(load_file(path).cluster)
            except PDClusterError as error:
                was_applied = False
                screen.told(_unapplied(path, error))
                continue
            # A file that is saved as it was is no news, unless it was broken in between.
            if edit.changes or not was_applied:
                screen.told(edit_message(edit, str(path)))
            was_applied = True
            if edit.is_felt:
                announcing.create_task(_tell_applied(local, screen, before, admin_url))


def _tell_lost(following: asyncio.Task[None], screen: Screen, path: Path) -> None:
    if not following.cancelled() and (error := following.exception()) is not None:
        screen.told(f"{path} is no longer watched ({error}); start `up` again to apply edits.")


def _unapplied(path: Path, error: PDClusterError) -> str:
    if not path.exists():
        return (
            f"{path} is gone; the programs go on as they are. Write it again to change them, "
            "press Ctrl-C to stop them."
        )
    return (
        f"{path} is not applied; the programs go on as they are. Correct it and save it again:\n"
        f"{error}"
    )


async def _tell_applied(
    local: LocalCluster, screen: Screen, before: PDCluster, admin_url: str
) -> None:
    """Say that an edit serves, and what of the outside it has changed.

    An edit that was undone meanwhile has been told of.
    """
    edited = local.resource
    with contextlib.suppress(CliError):
        await local.wait_ready()
        if local.resource is not edited:
            return
        lines = ["The edit is applied: the programs serve."]
        if _model(before) != _model(edited):
            model = _model(edited)
            lines.append(f"The model is {model!r} now:\n  {curl_line(local.url, model)}")
        if local.admin_url != admin_url:
            # Two proxies live side by side for a moment, and each has an admin page of its own.
            lines.append(f"The proxy's admin page is at {local.admin_url} now.")
        screen.told("\n".join(lines))
