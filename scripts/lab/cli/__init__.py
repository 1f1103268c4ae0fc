"""`flashedge bench`, `simulate` and `models eval`. The CLI finds them in a checkout alone."""

from __future__ import annotations

from typing import Any

import typer


def option(metavar: str | None, text: str, *names: str, **more: Any) -> Any:
    """An option of a command. more: further arguments of `typer.Option`."""
    return typer.Option(*names, metavar=metavar, help=text, **more)
