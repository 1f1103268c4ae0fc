"""`runs ls|show|export|rm`: what the daemon has done."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from flashedge.cli import output
from flashedge.config import load_config
from flashedge.errors import ConfigError, Conflict, RunInterrupted

app = typer.Typer(help="Runs that the daemon keeps.", no_args_is_help=True)
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RunId = Annotated[str, typer.Argument(help="The run's id, from `flashedge runs ls`.")]


def _client() -> Any:
    from flashedge.daemon import control as daemon_control

    return daemon_control.connect(load_config())


@app.command(name="ls")
def ls(
    limit: Annotated[int, typer.Option("--limit", "-l", min=1, max=1000)] = 20,
    status: Annotated[str | None, typer.Option(help="Only runs of this status.")] = None,
    before: Annotated[str | None, typer.Option(help="Only runs older than this one.")] = None,
    as_json: Json = False,
) -> None:
    """List runs, newest first."""
    with _client() as client:
        page = client.runs(limit=limit, status=status, before=before)
    if as_json:
        output.print_json(page["data"])
        return
    columns = ("id", "status", "when", "search", "answer", "tokens", "seconds", "problem")
    output.print_table(columns, [_row(run) for run in page["data"]], "no runs yet")
    if page.get("has_more"):
        output.note(f"more: flashedge runs ls --before {page['data'][-1]['id']}")


@app.command(name="show")
def show(
    run: RunId,
    as_json: Json = False,
    tree: Annotated[
        bool, typer.Option("--tree", help="Print the stored tree alone, every node of it.")
    ] = False,
) -> None:
    """Show one run: its tree, its chosen path, its answer."""
    from flashedge.cli.solve.command import print_result
    from flashedge.cli.solve.live_tree import render
    from flashedge.cli.solve.tree_view import TreeView, fold

    with _client() as client:
        found = client.run(run)
        if as_json:
            output.print_json(found)
            return
        if found.get("status") in ("queued", "running"):
            output.note(f"run {run} is {found['status']}")
            return
        view = TreeView(run=run)
        for _, event in stored_events(client, run):
            view = fold(view, event)
    if tree:
        console = output.stdout()
        console.print(render(view, width=console.width, whole=True))
        return
    console = output.stderr()
    console.print(render(view, width=console.width))
    if found.get("status") == "finished":
        print_result(found, quiet=False)
    else:
        error = found.get("error") or {}
        said = error.get("message") if isinstance(error, dict) else error
        print(f"{found.get('status')}" + (f": {said}" if said else ""))


@app.command(name="export")
def export(
    run: RunId,
    to: Annotated[Path | None, typer.Option("--output", "-o", help="A file, not stdout.")] = None,
    html: Annotated[
        bool, typer.Option("--html", help="One page for a browser, with the tree.")
    ] = False,
) -> None:
    """Write a run as JSON lines: its object, then its numbered events."""
    from flashedge.events import to_json

    with _client() as client:
        found = client.run(run)
        if html:
            _write(_page(client, run, found), to)
            return
        lines = [json.dumps({"run": found}, ensure_ascii=False)]
        if found.get("status") not in ("queued", "running"):
            for number, event in stored_events(client, run):
                lines.append(json.dumps({"seq": number, "event": to_json(event)}))
    _write("\n".join(lines) + "\n", to)


@app.command(name="rm")
def rm(runs: Annotated[list[str], typer.Argument(help="Ids of finished runs.")]) -> None:
    """Forget runs that are over."""
    with _client() as client:
        for run in runs:
            client.delete(run)
            output.note(f"removed {run}")


def _page(client: Any, run: str, found: dict[str, Any]) -> str:
    from flashedge import events
    from flashedge.cli.solve.html_page import page
    from flashedge.cli.solve.tree_view import TreeView, fold

    if found.get("status") in ("queued", "running"):
        raise Conflict(f"run {run} is {found['status']}", hint="export it when it is over")
    view, problem = TreeView(run=run), ""
    for _, event in stored_events(client, run):
        view = fold(view, event)
        if isinstance(event, events.RunStarted):
            messages = (event.config.get("problem") or {}).get("messages") or [{}]
            problem = str(messages[-1].get("content", ""))
    return page(view, {"id": run, **found}, problem)


def _write(text: str, to: Path | None) -> None:
    """To the file, or to stdout. Raises ConfigError."""
    if to is None:
        print(text, end="")
        return
    try:
        to.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"can't write {to}: {error.strerror}") from error
    output.note(f"wrote {to}")


def stored_events(client: Any, run: str) -> Iterator[tuple[int, Any]]:
    """All events of a run that is over; an interrupted one has no last event."""
    try:
        yield from client.events(run)
    except RunInterrupted:
        return


def _row(run: dict[str, Any]) -> tuple[object, ...]:
    total = run.get("total_s")
    problem = " ".join(str(run.get("problem", "")).split())
    return (
        run["id"],
        run["status"],
        f"{output.ago(time.time() - run['created_at'])} ago",
        f"{run.get('strategy')}-{run.get('n')}",
        run.get("answer"),
        run.get("tree_tokens"),
        None if total is None else f"{total:.1f}",
        problem if len(problem) <= 48 else problem[:47] + "…",
    )
