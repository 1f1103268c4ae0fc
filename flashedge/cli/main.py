"""`flashedge`: the entry point and the list of commands."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from flashedge import __version__
from flashedge.cli import bench, chat, daemon_cmds, output, profile, runs, simulate, tui
from flashedge.cli.calibrate import command as calibrate
from flashedge.cli.doctor import command as doctor
from flashedge.cli.models import command as models
from flashedge.cli.solve import command as solve

app = typer.Typer(
    name="flashedge",
    help="A local reasoning server: verifier-guided search on your own machine.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command(name="solve", rich_help_panel="Ask")(solve.solve)
app.command(name="chat", rich_help_panel="Ask")(chat.chat)
app.add_typer(runs.app, name="runs", rich_help_panel="Ask")
app.command(name="calibrate", rich_help_panel="Ask")(calibrate.calibrate)
app.command(name="simulate", rich_help_panel="Ask")(simulate.simulate)
app.command(name="tui", rich_help_panel="Ask")(tui.tui)
app.command(name="up", rich_help_panel="Daemon")(daemon_cmds.up)
app.command(name="down", rich_help_panel="Daemon")(daemon_cmds.down)
app.command(name="ps", rich_help_panel="Daemon")(daemon_cmds.ps)
app.command(name="logs", rich_help_panel="Daemon")(daemon_cmds.logs)
app.command(name="profile", rich_help_panel="Daemon")(profile.profile)
app.command(name="doctor", rich_help_panel="Daemon")(doctor.doctor)
app.add_typer(bench.app, name="bench", rich_help_panel="Daemon")
app.add_typer(models.app, name="models", rich_help_panel="Models")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"flashedge {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def run() -> None:
    """The console script. Usage errors exit 2, others as `errors.py` says."""
    sys.exit(main())


def main(argv: list[str] | None = None) -> int:
    """Run one command; its exit code."""
    code = 0

    def called() -> None:
        nonlocal code
        code = app(argv, prog_name="flashedge", standalone_mode=False) or 0

    try:
        return output.guarded(called) or code
    except typer.Exit as leave:
        return leave.exit_code
    except typer.Abort:
        return output.EXIT_INTERRUPTED
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else 1
    except Exception as error:
        if hasattr(error, "show") and hasattr(error, "exit_code"):  # click's usage errors
            error.show()
            return int(error.exit_code)
        raise
