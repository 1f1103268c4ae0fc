"""Commands of the lab: measuring tools that a checkout has in scripts/lab, and a wheel lacks.

A command is listed by its name and help alone, and imported from the checkout when it is typed.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from flashedge.errors import ConfigError

CHECKOUT = Path(__file__).parents[2]
"""The folder above the package: the top of a checkout, or site-packages."""
COMMANDS = {
    "simulate": (
        "scripts.lab.cli.simulate",
        "Estimate a pair's speed on a card: the stock loop, then each optimization.",
    ),
    "bench": (
        "scripts.lab.cli.bench",
        "Measure what optimizations gain, and how a load of many programs fares.",
    ),
    "eval": (
        "scripts.lab.cli.evaluate",
        "Measure a pair on problems with known answers: sampling, votes, search, verifier.",
    ),
}
"""For each command the module whose `app` is the command or group, and its help."""


class GroupWithLab(TyperGroup):
    """A group of commands that imports those of the lab from the checkout, if there is one."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        listed: Any = super().get_command(ctx, cmd_name)
        if listed is None or cmd_name not in COMMANDS or not (CHECKOUT / "scripts/lab").is_dir():
            return listed
        found: Any = typer.main.get_command(import_app(COMMANDS[cmd_name][0]))
        found.name, found.rich_help_panel = cmd_name, listed.rich_help_panel
        return found


def add_lab_command(app: typer.Typer, name: str, panel: str | None = None) -> None:
    """List a command of the lab. `app` must be made with `cls=GroupWithLab`."""

    @app.command(
        name=name,
        help=f"{COMMANDS[name][1]} Needs a checkout of the project.",
        rich_help_panel=panel,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def refuse(context: typer.Context) -> None:
        raise ConfigError(
            f"`{context.command_path}` measures FlashEdge, and only a checkout of the project has"
            " what it needs; this is an installed package",
            hint="clone the project, run `bash scripts/setup.sh` there, and use"
            f" .venv/bin/{context.command_path}",
        )


def import_app(module: str) -> typer.Typer:
    """The `app` of a module of the lab. The checkout's package `scripts` is loaded from its path,
    because another package of that name may come first in `sys.path`."""
    if "scripts" not in sys.modules:
        place = CHECKOUT / "scripts" / "__init__.py"
        spec = importlib.util.spec_from_file_location("scripts", place)
        assert spec is not None
        assert spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules["scripts"] = package
        spec.loader.exec_module(package)
    app = importlib.import_module(module).app
    assert isinstance(app, typer.Typer)
    return app
