"""`runs ls|show|replay|verify|export|rm`: the runs that the daemon keeps."""

import asyncio
import contextlib
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from flashedge import errors
from flashedge.cli import output
from flashedge.cli.output import Json
from flashedge.client.words import describe_wait, format_count, format_duration
from flashedge.config import load_config
from flashedge.literal import format_json, show_in_line

LINES, PAGE = (".jsonl", ".ndjson"), (".html", ".htm")
OVER = ("finished", "failed", "cancelled", "interrupted")
"""The statuses of a run that will not change any more."""
MAX_ANSWER = 12
"""Most characters of an answer in `runs ls`, which leaves room for the problem."""
EXAMPLES = """\
Examples:
  flashedge runs ls --status failed
  flashedge runs ls --grep nuts
  flashedge runs show 3f9a
  flashedge runs verify 3f9a
  flashedge runs export 3f9a -o run.html
  flashedge runs rm --older-than 7d
  flashedge runs rm --cancelled
"""
app = typer.Typer(help="Runs that the daemon keeps.", no_args_is_help=True, epilog=EXAMPLES)
RunId = Annotated[str, Argument(metavar="RUN", help="An id from `runs ls`, or its beginning.")]


def _connect() -> Any:
    from flashedge.daemon import control as daemon_control

    return daemon_control.connect(load_config())


@app.command(name="ls")
def ls(
    limit: Annotated[
        int, Option("--limit", "-l", metavar="N", min=1, max=1000, help="Runs to list.")
    ] = 20,
    status: Annotated[
        str | None,
        Option(metavar="STATUS", help=f"Only these: queued, running, {', '.join(OVER)}."),
    ] = None,
    before: Annotated[str | None, Option(metavar="RUN", help="Only runs before RUN.")] = None,
    grep: Annotated[
        str | None,
        Option(
            metavar="TEXT",
            help="Only with this text in the problem, the answer or its path; case is ignored.",
        ),
    ] = None,
    full: Annotated[bool, Option("--full", help="Print whole ids.")] = False,
    as_json: Json = False,
) -> None:
    """List runs, newest first, one on each line."""
    with _connect() as client:
        if before is not None:
            before = find_run(client, before)
        page = client.runs(limit=limit, status=status, before=before, contains=grep)
    found = page["data"]
    if as_json:
        output.print_json(found)
        return
    ids = [run["id"] for run in found]
    names = ids if full else shorten_ids(ids)
    columns = ("id", "status", "age", "search", "answer", "tokens", "seconds", "problem")
    rows = [_format_run(name, run) for name, run in zip(names, found, strict=True)]
    again = ["flashedge", "runs", "ls"]
    again += [] if status is None else ["--status", status]
    again += [] if grep is None else ["--grep", grep]
    is_part = any(given is not None for given in (before, status, grep))
    output.print_lines(columns, rows, "there is no such run" if is_part else "no runs yet")
    if page.get("has_more"):
        output.note(f"There are more: {shlex.join([*again, '--before', ids[-1]])}")


@app.command(name="show")
def show(
    run: RunId,
    as_json: Json = False,
    tree: Annotated[bool, Option("--tree", help="Print only the tree, with every step.")] = False,
    depth: Annotated[
        int | None,
        Option(metavar="N", min=1, help="Print N levels of the tree, and count the rest."),
    ] = None,
) -> None:
    """Show one run: its tree, its chosen path and its answer."""
    from flashedge.cli.solve.live_tree import render
    from flashedge.cli.solve.result import print_result
    from flashedge.client.run_view import RunView, fold, interrupt

    with _connect() as client:
        run = find_run(client, run)
        found = client.run(run)
        if as_json:
            output.print_json(found)
            return
        status = str(found.get("status"))
        if status not in OVER:
            known = describe_wait(found.get("position"), found.get("starts_in_s"))
            output.note(f"run {run} is {status}{known and ': '}{known}")
            return
        view = interrupt(fold(RunView(id=run), load_events(client, run)))
    console = output.stdout() if tree else output.stderr()
    console.print(render(view, width=console.width, every_node=tree, depth=depth))
    if tree:
        return
    if status == "finished":
        print_result(found, quiet=False)
    else:
        error = found.get("error") or {}
        message = error.get("message") if isinstance(error, dict) else error
        output.say(status + (f": {message}" if message else ""))


@app.command(name="replay")
def replay(run: RunId, as_json: Json = False) -> None:
    """Build the tree of a boosted run again from its log, and say whether it is the same tree."""
    from flashedge.runtime.rollouts.replay import RunLog, find_difference

    with _connect() as client:
        run = find_run(client, run)
        log = RunLog.from_events(run, (event for _, event in load_events(client, run)))
    tree_again, finish = asyncio.run(_replay(log))
    difference = find_difference(log, tree_again, finish)
    nodes, allowances = len(tree_again.nodes) - 1, len(log.script)
    cancelled = sum(node.status == "cancelled" for node in tree_again.nodes.values())
    if as_json:
        told = {"id": run, "same": difference is None, "difference": difference, "nodes": nodes}
        output.print_json({**told, "allowances": allowances, "cancelled_nodes": cancelled})
    else:
        words = "the same tree" if difference is None else f"another tree: {difference}"
        output.say(
            f"{words} ({format_count(nodes, 'node')},"
            f" {format_count(allowances, 'change')} of the rollouts in flight,"
            f" {format_count(cancelled, 'node')} cancelled)"
        )
    if difference is not None:
        raise typer.Exit(output.NO_RESULT)


async def _replay(log: Any) -> Any:
    from flashedge.answers.grouping import WordGroups
    from flashedge.answers.workers.embedding_groups import build_embedding_groups
    from flashedge.answers.workers.mathematics import MathGrader
    from flashedge.runtime.rollouts.replay import replay

    grader, texts = MathGrader(), build_embedding_groups(load_config()) or WordGroups()
    try:
        return await replay(log, grader, texts)
    finally:
        await grader.close()
        await texts.close()


@app.command(name="verify")
def verify(run: RunId, as_json: Json = False) -> None:
    """Run a deterministic run once more, and name the first difference in tree and answer."""
    from flashedge.runtime.records.repetition import (
        RecordedRun,
        compare_fingerprints,
        find_difference,
    )

    with _connect() as client:
        run = find_run(client, run)
        result = client.run(run)
        if (status := result.get("status")) != "finished":
            raise errors.Conflict(f"run {run} is {status}, so there is no tree to compare with")
        if not result.get("fingerprint"):
            raise errors.Conflict(
                f"run {run} was not deterministic, so it need not repeat itself",
                hint="verify a run of `flashedge solve --deterministic`",
            )
        stored = RecordedRun.from_log(result, (event for _, event in client.events(run)))
        name, repeated = _repeat(client, run)
    again = RecordedRun.from_log(dict(repeated[-1].result), repeated)
    changed = compare_fingerprints(stored.fingerprint, again.fingerprint)
    difference = find_difference(stored, again)
    nodes = len(stored.nodes) - 1
    tokens = sum(len(node.token_ids) for node in stored.nodes.values())
    if as_json:
        told = {"id": run, "repeated_as": name, "identical": difference is None}
        told |= {"difference": difference, "fingerprint_difference": changed}
        output.print_json({**told, "nodes": nodes, "tokens": tokens})
    else:
        if changed is not None:
            output.say(f"another fingerprint: {changed}")
        words = "identical" if difference is None else f"not identical: {difference}"
        output.say(
            f"{words} ({format_count(nodes, 'node')}, {format_count(tokens, 'token')};"
            f" repeated as run {name})"
        )
    if difference is not None:
        raise typer.Exit(output.NO_RESULT)


def _repeat(client: Any, run: str) -> tuple[str, list[Any]]:
    """Repeat a run: (the id of the repetition, its events). An interrupt cancels the repetition.

    Raises the error of a repetition that fails, and Conflict for one that is cancelled.
    """
    from flashedge import events
    from flashedge.client.protocol import build_run_error

    name = client.repeat_run(run)["id"]
    output.note(f"run {run} runs again as {name}")
    log: list[Any] = []
    try:
        log += (event for _, event in client.events(name))
    except KeyboardInterrupt:
        with contextlib.suppress(errors.FlashEdgeError):
            client.cancel(name)
        raise
    match log[-1]:
        case events.RunFailed() as failed:
            raise build_run_error(failed)
        case events.RunCancelled(reason=reason):
            raise errors.Conflict(f"the repetition was cancelled: {reason}")
    return name, log


@app.command(name="export")
def export(
    run: RunId,
    to: Annotated[
        Path | None,
        Option("--output", "-o", metavar="FILE", help="Write to FILE (.jsonl or .html)."),
    ] = None,
    html: Annotated[bool, Option("--html", help="Write a page with the tree.")] = False,
    force: Annotated[bool, Option("--force", help="Replace FILE if it exists.")] = False,
) -> None:
    """Write a run as JSON lines: the run's object, then its numbered events."""
    html = html or (to is not None and to.suffix.lower() in PAGE)
    if to is not None:
        _check_target(to, PAGE if html else LINES, force=force)
    with _connect() as client:
        run = find_run(client, run)
        found = client.run(run)
        text = _format_page(client, run, found) if html else _format_lines(client, run, found)
    if to is None:
        output.print_data(text, end="")
        return
    try:
        to.write_text(text, encoding="utf-8")
    except OSError as error:
        raise errors.ConfigError(f"can't write {to}: {error.strerror}") from error
    output.note(f"wrote {to}")


@app.command(name="rm")
def rm(
    runs: Annotated[
        list[str] | None, Argument(metavar="RUN...", help="Ids of runs that are over.")
    ] = None,
    everything: Annotated[
        bool, Option("--all", help="Remove all runs that are over, after a question.")
    ] = False,
    older_than: Annotated[
        str | None, Option(metavar="AGE", help="Remove runs created longer ago: 12h, 7d, 4w.")
    ] = None,
    cancelled: Annotated[
        bool, Option("--cancelled", help="Remove cancelled runs, which have no answer.")
    ] = False,
    yes: Annotated[bool, Option("--yes", "-y", help="With --all: don't ask.")] = False,
) -> None:
    """Remove runs that are over, with their trees. This can't be undone."""
    if sum((bool(runs), everything, older_than is not None or cancelled)) != 1:
        raise errors.RequestError(
            "say once which runs to remove",
            hint="flashedge runs rm RUN..., or --all, or --cancelled, or --older-than 7d",
        )
    must_ask = everything and not yes
    if must_ask and not sys.stdin.isatty():
        raise errors.RequestError(
            "--all removes every run that is over, and there is no terminal to ask on",
            hint="add --yes to remove them without a question",
        )
    min_age_s = parse_age(older_than) if older_than is not None else 0.0
    with _connect() as client:
        if runs:
            ids = list(dict.fromkeys(find_run(client, run) for run in runs))
        else:
            before = time.time() - min_age_s
            statuses = ("cancelled",) if cancelled else OVER
            ids = [r["id"] for r in find_runs(client, statuses) if r["created_at"] <= before]
        question = f"Remove {format_count(len(ids), 'run')} with all trees? This can't be undone."
        if must_ask and ids and not typer.confirm(question, err=True):
            output.note("removed nothing")
            raise typer.Exit(output.NO_RESULT)
        for run in ids:
            with contextlib.suppress(errors.NotFound):  # another command may have removed it
                client.delete(run)
            if runs:
                output.note(f"removed {run}")
    if not runs:
        output.note(f"removed {format_count(len(ids), 'run')}")


def parse_age(text: str) -> float:
    """The seconds of `30m`, `12h`, `7d` or `4w`. Raises RequestError."""
    units = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
    number, unit = text[:-1], text[-1:]
    is_number = number.isascii() and number.isdigit()
    if unit not in units or not is_number or len(number) > 6:  # else it might overflow
        raise errors.RequestError(
            f"--older-than is {text!r}; it must be a number and m, h, d or w",
            hint="for example --older-than 7d",
            param="older_than",
        )
    return int(number) * units[unit]


def load_events(client: Any, run: str) -> Iterator[tuple[int, Any]]:
    """(number, event) pairs of a run that is over. An interrupted run has no terminal event."""
    try:
        yield from client.events(run)
    except errors.RunInterrupted:
        return


def _check_target(to: Path, suffixes: tuple[str, ...], *, force: bool) -> None:
    """Raises ConfigError if the name is another format's, or without `force` if the file exists."""
    if to.suffix and to.suffix.lower() not in suffixes:
        raise errors.ConfigError(
            f"a run can't be written as {to.suffix}; the formats are JSON lines and HTML",
            hint="use -o FILE.jsonl or -o FILE.html",
            param="output",
        )
    if to.exists() and not force:
        raise errors.ConfigError(
            f"{to} exists", hint="choose another name, or replace it with --force", param="output"
        )


def _format_lines(client: Any, run: str, found: dict[str, Any]) -> str:
    from flashedge.events import to_json

    events = load_events(client, run) if found.get("status") in OVER else ()
    lines = [format_json({"run": found})]
    lines += [format_json({"seq": number, "event": to_json(event)}) for number, event in events]
    return "\n".join(lines) + "\n"


def _format_page(client: Any, run: str, found: dict[str, Any]) -> str:
    from flashedge.cli.solve.html_page import render_page
    from flashedge.client.run_view import RunView, fold, interrupt

    if found.get("status") not in OVER:
        told = f"run {run} is {found.get('status')}"
        raise errors.Conflict(told, hint="export it when it is over")
    view = interrupt(fold(RunView(id=run), load_events(client, run)))
    messages = (view.config.get("problem") or {}).get("messages") or [{}]
    return render_page(view, {"id": run, **found}, str(messages[-1].get("content", "")))


def _format_run(name: str, run: dict[str, Any]) -> tuple[object, ...]:
    total, position = run.get("total_s"), run.get("position")
    answer = run.get("answer")
    if answer is not None:
        answer = show_in_line(answer)
        if len(answer) > MAX_ANSWER:
            answer = answer[: MAX_ANSWER - 1] + "…"
    return (
        name,
        run["status"] if position is None else f"{run['status']} #{position + 1}",
        format_duration(time.time() - run["created_at"]),
        f"{run.get('strategy')}-{run.get('n')}",
        answer,
        run.get("tree_tokens"),
        None if total is None else f"{total:.1f}",
        run.get("problem", ""),
    )


def find_run(client: Any, given: str) -> str:
    """The one id that begins with `given`, with or without `run-`. An exact id always counts.

    Raises NotFound, or RequestError for several.
    """
    ids = []
    for run in find_runs(client):
        if run["id"] == given:
            return given
        ids.append(str(run["id"]))
    return choose_id(given, ids, "run", "flashedge runs ls", "run-")


def choose_id(given: str, ids: Iterable[str], what: str, listed_by: str, prefix: str = "") -> str:
    """The one of `ids` that begins with `given`, or with `prefix` and `given`.

    what, listed_by: for errors, the noun and the command that lists the ids. Raises NotFound, or
    RequestError for several.
    """
    found = [name for name in ids if name.startswith((given, f"{prefix}{given}"))]
    if not found:
        raise errors.NotFound(f"there is no {what} {given!r}", hint=f"list them: {listed_by}")
    if len(found) > 1:
        some = ", ".join(found[:5]) + (", …" if len(found) > 5 else "")
        raise errors.RequestError(
            f"{len(found)} {what}s begin with {given!r}: {some}", hint="type more of the id"
        )
    return found[0]


def find_runs(client: Any, statuses: Sequence[str | None] = (None,)) -> Iterator[dict[str, Any]]:
    """The summaries of all runs of these statuses, the newest of each first. None is any status."""
    for status in statuses:
        before: str | None = None
        while True:
            page = client.runs(limit=1000, before=before, status=status)
            yield from page["data"]
            if not page.get("has_more") or not page["data"]:
                break
            before = page["data"][-1]["id"]


def shorten_ids(ids: Sequence[str]) -> list[str]:
    """The shortest prefixes, all of one length of at least 8, that tell `ids` apart."""
    for length in range(len("run-") + 4, max(map(len, ids), default=0)):
        short = [run[:length] for run in ids]
        if len(set(short)) == len(set(ids)):
            return short
    return list(ids)
