"""The verbs of ``kubectl pdcluster``: their words, and what each runs.

Shell: a composition root. What a verb needs is imported when it runs, so that the command starts
fast.
"""

from __future__ import annotations

import os
import shutil
import sys
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

import typer

from pdcluster_cli.exit_codes import ExitCode
from pdcluster_cli.kubectl.exit_help import PLUGIN_EXIT_CODE_HELP
from pdcluster_cli.kubectl.options import ALL_LINES, LogOptions, Part, Target
from pdcluster_cli.options import Output
from pdcluster_cli.running import run_until_interrupted

__all__ = ["app"]

app = typer.Typer(
    name="pdcluster",
    help="What a PDCluster is doing, and what its pods log.",
    epilog=PLUGIN_EXIT_CODE_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,  # kubectl completes its plugins in a way of its own.
    context_settings={"help_option_names": ["-h", "--help"]},
)

_Name = Annotated[str, typer.Argument(help="Name of the PDCluster.", show_default=False)]
_Namespace = Annotated[
    str, typer.Option("--namespace", "-n", help="Its namespace; default: the context's.")
]
_Context = Annotated[str, typer.Option(help="Context of the kubeconfig; default: its current one.")]
_Kubeconfig = Annotated[
    str, typer.Option(help="The kubeconfig; default: $KUBECONFIG, then ~/.kube/config.")
]


@app.command(epilog=PLUGIN_EXIT_CODE_HELP)
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as version_of  # noqa: PLC0415 - starts fast

    print(f"pdcluster {version_of('pdcluster')}")


@app.command(epilog=PLUGIN_EXIT_CODE_HELP)
def status(
    name: _Name,
    *,
    namespace: _Namespace = "",
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print.")] = Output.TEXT,
    context: _Context = "",
    kubeconfig: _Kubeconfig = "",
) -> None:
    """Print pools, lease timing, conditions and events. Exits with 0 where it is Ready."""
    target = Target(name=name, namespace=namespace, context=context, kubeconfig=kubeconfig)
    raise typer.Exit(run_until_interrupted(partial(_status, target, output)))


async def _status(target: Target, output: Output) -> ExitCode:
    from pdcluster_cli.kubectl.connection import connect  # noqa: PLC0415 - starts fast
    from pdcluster_cli.kubectl.fetching import fetch_status  # noqa: PLC0415 - same
    from pdcluster_cli.kubectl.text import status_json, status_text  # noqa: PLC0415 - same
    from pdcluster_cli.kubectl.view import status_view  # noqa: PLC0415 - same

    async with connect(target, os.environ) as connection:
        view = status_view(await fetch_status(connection, connection.namespace, target.name))
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if output is Output.JSON:
        print(status_json(view))
    else:
        print(status_text(view, now=datetime.now(UTC), width=width))
    return ExitCode.WELL if view.is_ready else ExitCode.FINDING


@app.command(epilog=PLUGIN_EXIT_CODE_HELP)
def logs(
    name: _Name,
    *,
    namespace: _Namespace = "",
    role: Annotated[
        Part | None, typer.Option(help="Whose logs.", show_default="everybody's")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until interrupted; new pods are joined.")
    ] = False,
    tail: Annotated[
        int, typer.Option(min=ALL_LINES, help="Last lines of each pod; -1: all of them.")
    ] = 20,
    previous: Annotated[
        bool,
        typer.Option("--previous", "-p", help="Of the containers before those that run."),
    ] = False,
    context: _Context = "",
    kubeconfig: _Kubeconfig = "",
) -> None:
    """Print the logs of its pods, each line with its pod's name."""
    from pdcluster_cli.kubectl.errors import OptionsError  # noqa: PLC0415 - starts fast

    if follow and previous:
        raise OptionsError("what has ended can't be followed; leave out --follow or --previous")
    target = Target(name=name, namespace=namespace, context=context, kubeconfig=kubeconfig)
    options = LogOptions(part=role, follow=follow, tail=tail, previous=previous)
    raise typer.Exit(run_until_interrupted(partial(_logs, target, options)))


async def _logs(target: Target, options: LogOptions) -> ExitCode:
    from pdcluster_cli.kubectl.connection import connect  # noqa: PLC0415 - starts fast
    from pdcluster_cli.kubectl.fetching import fetch_cluster  # noqa: PLC0415 - same
    from pdcluster_cli.kubectl.pod_logs import PodLogs  # noqa: PLC0415 - same

    def write(lines: bytes) -> None:
        sys.stdout.buffer.write(lines)
        sys.stdout.buffer.flush()

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    async with connect(target, os.environ) as connection:
        namespace = connection.namespace
        await fetch_cluster(connection, namespace, target.name)
        pods = PodLogs(connection, namespace, target.name, options, write=write, say=say)
        if options.follow:
            await pods.follow()
            return ExitCode.WELL
        return ExitCode.WELL if await pods.read() else ExitCode.FINDING
