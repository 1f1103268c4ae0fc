"""`flashedge`: the entry point and the list of commands."""

import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from typer import Option

from flashedge import __version__
from flashedge.cli import calibrate, config, daemon, lab, launch, models, output, profile, ps, runs
from flashedge.cli.chat import command as chat
from flashedge.cli.doctor import command as doctor
from flashedge.cli.score import command as score
from flashedge.cli.solve import command as solve
from flashedge.errors import RequestError
from flashedge.literal import show_literally

_RULES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "int_parsing": lambda _: "an integer",
    "int_from_float": lambda _: "an integer",
    "float_parsing": lambda _: "a number",
    "greater_than_equal": lambda limit: f"at least {limit['ge']}",
    "less_than_equal": lambda limit: f"at most {limit['le']}",
}
"""What a value must be, by pydantic's name for what is wrong with it."""
SOLVE, DAEMON, MACHINE = "Solve problems", "Daemon", "Models and this machine"
_CODES = "\n".join(f"{code:>5}  {meaning}" for code, meaning in output.EXIT_CODES.items())
EPILOG = f"""\
[bold]Examples[/]
  flashedge solve "Dan has 24 nuts and wins 20. How many has he now?"
  flashedge chat --search beam-16

[bold]Exit codes[/]
{_CODES}
"""

app = typer.Typer(
    name="flashedge",
    cls=lab.GroupWithLab,
    help="A local reasoning server: verifier-guided search on your own machine.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("solve", epilog=solve.EPILOG, rich_help_panel=SOLVE)(solve.solve)
app.command("score", epilog=score.EPILOG, rich_help_panel=SOLVE)(score.score)
app.command("chat", epilog=chat.EPILOG, rich_help_panel=SOLVE)(chat.chat)
app.command("launch", epilog=launch.EPILOG, rich_help_panel=SOLVE)(launch.launch)
app.command("tui", rich_help_panel=SOLVE)(daemon.tui)
app.add_typer(runs.app, name="runs", rich_help_panel=SOLVE)
app.command("calibrate", epilog=calibrate.EPILOG, rich_help_panel=SOLVE)(calibrate.calibrate)
app.command("up", rich_help_panel=DAEMON)(daemon.up)
app.command("down", rich_help_panel=DAEMON)(daemon.down)
app.command("unload", rich_help_panel=DAEMON)(daemon.unload)
app.command("ps", rich_help_panel=DAEMON)(ps.ps)
app.command("logs", rich_help_panel=DAEMON)(daemon.logs)
app.add_typer(config.app, name="config", rich_help_panel=DAEMON)
app.add_typer(models.app, name="models", rich_help_panel=MACHINE)
app.command("doctor", rich_help_panel=MACHINE)(doctor.doctor)
app.command("profile", rich_help_panel=MACHINE)(profile.profile)
lab.add_lab_command(app, "simulate", MACHINE)
lab.add_lab_command(app, "bench", MACHINE)


def _print_version(requested: bool) -> None:
    if requested:
        output.say(f"flashedge {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def run() -> None:
    """The console script. `output.EXIT_CODES` lists its exit codes."""
    sys.excepthook = output.print_traceback
    sys.exit(main())


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    code = 0

    def call() -> None:
        nonlocal code
        try:
            code = app(argv, prog_name="flashedge", standalone_mode=False) or 0
        except Exception as error:
            raise explain_value(error) or error from None

    given = sys.argv[1:] if argv is None else argv
    options = given[: given.index("--")] if "--" in given else given
    try:
        return output.run_guarded(call, as_json="--json" in options) or code
    except typer.Abort:
        return output.INTERRUPTED
    except SystemExit as leave:
        if isinstance(leave.__context__, BrokenPipeError):  # click and rich exit with 1 then
            return output.end_broken_pipe()
        return leave.code if isinstance(leave.code, int) else 1
    except Exception as error:
        usage: Any = error
        if not (hasattr(error, "show") and hasattr(error, "exit_code")):  # click's usage errors
            raise
        usage.message = show_literally(usage.message)
        usage.show()
        return int(usage.exit_code)


def explain_value(error: Exception) -> RequestError | None:
    """The error, in the daemon's words, for a value that typer refused. None for other errors."""
    list_faults = getattr(error.__cause__, "errors", None)
    options = getattr(getattr(error, "param", None), "opts", None)
    if not options or not callable(list_faults):
        return None
    fault = list_faults()[0]
    rule = _RULES.get(fault["type"])
    if rule is None:
        return None
    option, given = max(options, key=len), str(fault["input"])
    shown = repr(given) if "parsing" in fault["type"] else given
    must = rule(fault.get("ctx") or {})
    return RequestError(f"{option} is {shown}; it must be {must}", param=option.lstrip("-"))
