"""Commands of the lab: measuring tools that a checkout has in scripts/lab, and a wheel lacks.

The product imports nothing of the lab, so that it works without it. A command of the lab is listed
by its name and help alone, and taken from the checkout when somebody types it or asks for help.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from flashedge.errors import ConfigError

CHECKOUT = Path(__file__).parents[2]
"""The folder that the package lies in: of a wheel, site-packages."""
ANY_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabCommand:
    """One command, or a group of them, that a module of the lab has as its `app`."""

    module: str
    help: str


COMMANDS = {
    "simulate": LabCommand(
        module="scripts.lab.cli.simulate",
        help="Estimate a pair's speed on a card: the stock loop, then each optimization.",
    ),
    "bench": LabCommand(
        module="scripts.lab.cli.bench.command",
        help="Measure what optimizations gain, and how a load of many programs fares.",
    ),
    "eval": LabCommand(
        module="scripts.lab.cli.evaluate",
        help="Measure a pair on problems with known answers: sampling, votes, search, verifier.",
    ),
}


class GroupWithLab(TyperGroup):
    """A group of commands that takes those of the lab from the checkout, if there is one."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        listed: Any = super().get_command(ctx, cmd_name)
        if listed is None or cmd_name not in COMMANDS or not has_lab():
            return listed
        found: Any = typer.main.get_command(import_app(COMMANDS[cmd_name].module))
        found.name, found.rich_help_panel = cmd_name, listed.rich_help_panel
        return found


def add_lab_command(app: typer.Typer, name: str, panel: str | None = None) -> None:
    """List a command of the lab. `app` must be made with `cls=GroupWithLab`."""

    @app.command(
        name=name,
        help=f"{COMMANDS[name].help} Needs a checkout of the project.",
        rich_help_panel=panel,
        context_settings=ANY_OPTIONS,
    )
    def refuse(context: typer.Context) -> None:
        raise ConfigError(
            f"`{context.command_path}` measures FlashEdge, and only a checkout of the project has"
            " what it needs; this is an installed package",
            hint="clone the project, run `bash scripts/setup.sh` there, and use"
            f" .venv/bin/{context.command_path}",
        )


def has_lab() -> bool:
    return (CHECKOUT / "scripts" / "lab").is_dir()


def import_app(module: str) -> typer.Typer:
    """Import `app` of a module of the lab.

    The checkout need not be on Python's path: its package `scripts` is found by its place, so that
    no other package of that name is taken for it, and nothing else of the checkout is importable.
    """
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
