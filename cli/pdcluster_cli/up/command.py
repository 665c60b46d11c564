"""``pdcluster up``: the composition root of a run.

Shell: reads the file, finds the engine, checks ports, connects supervisor, screen, signals and the
watched file. Decides nothing else.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

import watchfiles
from rich.console import Console

from pdcluster_api.support import kubernetes_only
from pdcluster_api.v1alpha1 import PDCluster
from pdcluster_cli.errors import CliError
from pdcluster_cli.exit_codes import ExitCode
from pdcluster_cli.files import load_file
from pdcluster_cli.options import EngineChoice, UpOptions
from pdcluster_cli.settings import Settings
from pdcluster_cli.up.addresses import free_address, require_free
from pdcluster_cli.up.engines import PROXY_COMMAND, find_simulator, find_vllm
from pdcluster_cli.up.processes import Launcher
from pdcluster_cli.up.screen import Screen
from pdcluster_cli.up.supervisor import Supervisor
from pdcluster_cli.up.view import KEEPER_LINE, curl_line
from pdcluster_cli.up.wishes import EngineSource, Site
from pdcluster_lease.errors import PDClusterError

__all__ = ["example_file", "run_up"]

_RUNS_KEPT: Final = 10
"""Folders of earlier runs that are kept for their logs."""


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
    path = options.file or example_file()
    loaded = load_file(path)
    cluster = loaded.cluster
    source = _source(options.engine, settings, cluster)
    for port, purpose, flag in (
        (options.port, "clients", "--port"),
        (options.admin_port, "the proxy's admin page", "--admin-port"),
    ):
        require_free("127.0.0.1", port, purpose=purpose, remedy=f"Choose another with {flag}.")
    run_dir = _make_run_dir(options.state_dir or settings.state_dir, cluster.metadata.name)
    site = Site(
        source=source,
        proxy_command=PROXY_COMMAND,
        proxy_port=options.port,
        admin_port=options.admin_port,
        proxy_workers=options.workers,
        run_dir=PurePosixPath(run_dir),
        scratch_dir=PurePosixPath(settings.cache_dir / "engines"),
        models_dir=PurePosixPath(settings.models_dir),
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
                watched=options.file.resolve() if options.file is not None else None,
            )
        )


def _source(choice: EngineChoice, settings: Settings, cluster: PDCluster) -> EngineSource:
    if choice is EngineChoice.SIM:
        return find_simulator(settings)
    return find_vllm(settings, cluster)


def _make_run_dir(state_dir: Path, cluster: str) -> Path:
    """Make this run's folder and remove those of old runs that have ended."""
    runs = state_dir / "runs"
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{cluster}-{os.getpid()}"
    run_dir = runs / name
    run_dir.mkdir(parents=True)
    for old in sorted(runs.iterdir(), reverse=True)[_RUNS_KEPT:]:
        if not Path("/proc", old.name.rpartition("-")[2]).exists():
            shutil.rmtree(old, ignore_errors=True)
    return run_dir


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
    spec = cluster.spec
    ports = (spec.engine.port, spec.kv_transfer.side_channel_port, site.admin_port)
    supervisor = Supervisor(
        cluster,
        site=site,
        launcher=launcher,
        address=lambda taken: free_address(taken, ports=ports),
        listener=screen,
    )
    stopping = asyncio.Event()

    def on_signal() -> None:
        hurry = stopping.is_set()
        screen.told("Stopping at once." if hurry else "Draining. Press Ctrl-C again to hurry.")
        stopping.set()
        if hurry:
            stops.append(asyncio.ensure_future(supervisor.stop(at_once=True)))

    stops: list[asyncio.Future[None]] = []
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal)
    supervisor.start()
    helpers = [asyncio.create_task(_announce(supervisor, screen, site, cluster))]
    if watched is not None:
        helpers.append(asyncio.create_task(_follow(watched, supervisor, screen, stopping)))
    failing = asyncio.create_task(supervisor.wait_failed())
    told_to_stop = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((failing, told_to_stop), return_when=asyncio.FIRST_COMPLETED)
    finally:
        error = failing.result() if failing.done() else None
        for task in (*helpers, failing, told_to_stop):
            task.cancel()
        await supervisor.stop()
        await asyncio.gather(*stops)
    if error is not None:
        screen.told(f"Error: {error}")
        return error.exit_code
    screen.told("Stopped; nothing is left running.")
    return ExitCode.WELL


async def _announce(supervisor: Supervisor, screen: Screen, site: Site, cluster: PDCluster) -> None:
    try:
        await supervisor.wait_ready()
    except CliError:
        # wait_failed() tells it.
        return
    model = cluster.spec.model
    screen.told(
        f"Ready after {screen.elapsed_s:.1f} s: {supervisor.url} "
        f"(admin: http://127.0.0.1:{site.admin_port}). Ask it something:\n"
        f"  {curl_line(supervisor.url, model.served_name or model.name)}"
    )


async def _follow(
    path: Path, supervisor: Supervisor, screen: Screen, stopping: asyncio.Event
) -> None:
    """Take over every edit of the file; a bad one is shown and changes nothing."""
    # Editors replace files, so the folder is watched.
    async for changes in watchfiles.awatch(path.parent, stop_event=stopping, recursive=False):
        if not any(Path(changed) == path for _, changed in changes):
            continue
        try:
            changed = supervisor.apply(load_file(path).cluster)
        except PDClusterError as error:
            screen.told(f"The edit is not applied, the old programs stay:\n{error}")
            continue
        if changed:
            screen.told(f"{path} has changed: the new programs start, then the old ones drain.")
