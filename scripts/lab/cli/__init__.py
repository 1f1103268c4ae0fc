"""`flashedge bench`, `simulate` and `models eval`. The CLI finds them in a checkout alone."""

import hashlib
from pathlib import Path
from typing import Any

import typer

from flashedge.cli.solve.strategy_flags import complete_strategy
from flashedge.errors import StoreError
from flashedge.literal import format_json


def option(metavar: str | None, text: str, *names: str, **more: Any) -> Any:
    """An option of a command. more: further arguments of `typer.Option`."""
    return typer.Option(*names, metavar=metavar, help=text, **more)


def strategy_option(metavar: str, text: str, **more: Any) -> Any:
    return option(metavar, text, autocompletion=complete_strategy, **more)


def output_option(what: str, **more: Any) -> Any:
    """The option for the folder that keeps `what` was measured."""
    text = f"Folder for the {what} and the report. The same command resumes."
    return option("FOLDER", text, "--output", **more)


def write_report(path: Path, value: Any) -> None:
    """Write a report as JSON. Raises StoreError."""
    try:
        path.write_text(format_json(value, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise StoreError(f"can't write {path}: {error.strerror}") from error


def file_digest(path: Path) -> str:
    """The first 16 hex digits of the file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
