"""The verbs of the command: their words, and what each runs.

Shell: a composition root. What a verb needs is imported when it runs, so that the command starts
fast.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from pdcluster_cli.exit_codes import EXIT_CODE_HELP
from pdcluster_cli.options import EngineChoice, Output, UpOptions

__all__ = ["app"]

app = typer.Typer(
    name="pdcluster",
    help="vLLM with separate prefill and decode engines that respect the KV lease.",
    epilog=EXIT_CODE_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def program(
    *,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """VLLM with separate prefill and decode engines that respect the KV lease."""
    if show_version:
        version()
        raise typer.Exit


_File = Annotated[
    Path,
    typer.Option("--file", "-f", help="File with one PDCluster.", show_default=False),
]


_Output = Annotated[Output, typer.Option("--output", "-o", help="How to print.")]


@app.command(epilog=EXIT_CODE_HELP)
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as version_of  # noqa: PLC0415 - starts fast

    print(f"pdcluster {version_of('pdcluster')}")


@app.command(epilog=EXIT_CODE_HELP)
def render(file: _File, output: _Output = Output.TEXT) -> None:
    """Print what the operator would run: command lines, environment, derived timing."""
    from pdcluster_cli.files import load_file  # noqa: PLC0415 - starts fast
    from pdcluster_cli.rendering import render_json, render_text  # noqa: PLC0415 - same

    loaded = load_file(file)
    print(render_json(loaded) if output is Output.JSON else render_text(loaded))


@app.command("explain-lease", epilog=EXIT_CODE_HELP)
def explain_lease(file: _File, output: _Output = Output.TEXT) -> None:
    """Print every time that follows from the lease duration, with its formula."""
    from pdcluster_cli.explaining import explain_json, explain_text  # noqa: PLC0415 - starts fast
    from pdcluster_cli.files import load_file  # noqa: PLC0415 - same

    spec = load_file(file).cluster.spec
    print(explain_json(spec) if output is Output.JSON else explain_text(spec))


@app.command(epilog=EXIT_CODE_HELP)
def up(  # noqa: PLR0917 - typer calls it by keyword
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="File with one PDCluster; default: the first example."),
    ] = None,
    engine: Annotated[
        EngineChoice, typer.Option(help="Simulated engines, or real vLLM.")
    ] = EngineChoice.SIM,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port for clients, on 127.0.0.1.")
    ] = 8080,
    admin_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the proxy's admin page.")
    ] = 9090,
    workers: Annotated[
        int, typer.Option(min=0, max=256, help="The proxy's workers; 0: one per core.")
    ] = 0,
    state_dir: Annotated[
        Path | None,
        typer.Option(help="Where logs go; default: $XDG_STATE_HOME/pdcluster."),
    ] = None,
) -> None:
    """Run the resource on this machine, without Kubernetes. Ctrl-C drains it."""
    from rich.console import Console  # noqa: PLC0415 - starts fast

    from pdcluster_cli.settings import Settings  # noqa: PLC0415 - same
    from pdcluster_cli.up.command import run_up  # noqa: PLC0415 - same

    code = run_up(
        UpOptions(
            file=None if file is None else str(file),
            engine=engine,
            port=port,
            admin_port=admin_port,
            workers=workers,
            state_dir=None if state_dir is None else str(state_dir),
        ),
        settings=Settings.from_environ(os.environ),
        environ=os.environ,
        console=Console(),
    )
    raise typer.Exit(code)
