"""`runs verify` and `runs replay`: build a stored run's tree again, and compare."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import typer

from flashedge.cli import exit_codes, output
from flashedge.client.words import format_count
from flashedge.config import Config
from flashedge.errors import Conflict, FlashEdgeError


def verify_run(client: Any, run: str, *, as_json: bool) -> None:
    """Say whether the run repeats itself to the bit. Exits with 1 if not.

    Raises Conflict for a run that was not deterministic or has not finished, and what ends the
    repetition.
    """
    from flashedge.runtime.records.repetition import (
        RecordedRun,
        compare_fingerprints,
        find_difference,
    )

    result = client.run(run)
    if result.get("status") != "finished":
        raise Conflict(f"run {run} is {result.get('status')}, so there is no tree to compare with")
    if not result.get("fingerprint"):
        raise Conflict(
            f"run {run} was not deterministic, so it need not repeat itself",
            hint="verify a run of `flashedge solve --deterministic`",
        )
    stored = RecordedRun.from_log(result, (event for _, event in client.events(run)))
    name, repeated = _repeat(client, run)
    again = RecordedRun.from_log(*repeated)
    changed = compare_fingerprints(stored.fingerprint, again.fingerprint)
    difference = find_difference(stored, again)
    nodes = len(stored.nodes) - 1
    tokens = sum(len(node.token_ids) for node in stored.nodes.values())
    figures = {
        "id": run,
        "repeated_as": name,
        "identical": difference is None,
        "difference": difference,
        "fingerprint_difference": changed,
        "nodes": nodes,
        "tokens": tokens,
    }
    if as_json:
        output.print_json(figures)
    else:
        if changed is not None:
            output.say(f"another fingerprint: {changed}")
        words = "identical" if difference is None else f"not identical: {difference}"
        output.say(
            f"{words} ({format_count(nodes, 'node')}, {format_count(tokens, 'token')};"
            f" repeated as run {name})"
        )
    if difference is not None:
        raise typer.Exit(exit_codes.NO_RESULT)


def _repeat(client: Any, run: str) -> tuple[str, tuple[dict[str, Any], list[Any]]]:
    """The id of the repetition, its result and its events. An interrupt cancels it."""
    from flashedge import events
    from flashedge.client.protocol import build_run_error

    name = client.repeat_run(run)["id"]
    output.note(f"run {run} runs again as {name}")
    log: list[Any] = []
    try:
        for _, event in client.events(name):
            log.append(event)
    except KeyboardInterrupt:
        with contextlib.suppress(FlashEdgeError):
            client.cancel(name)
        raise
    match log[-1]:
        case events.RunFailed() as failed:
            raise build_run_error(failed)
        case events.RunCancelled(reason=reason):
            raise Conflict(f"the repetition was cancelled: {reason}")
        case finished:
            return name, (dict(finished.result), log)


def replay_run(run: str, log: Any, config: Config, *, as_json: bool) -> None:
    """Replay a run and say whether its tree is the same. Exits with 1 if not.

    log: a `runtime.rollouts.replay.RunLog`. Raises Conflict.
    """
    found = asyncio.run(_replay(log, config))
    difference = found.find_difference(log)
    figures = {
        "id": run,
        "same": difference is None,
        "difference": difference,
        "nodes": len(found.tree.nodes) - 1,
        "allowances": len(log.script),
        "cancelled_nodes": sum(n.status == "cancelled" for n in found.tree.nodes.values()),
    }
    if as_json:
        output.print_json(figures)
    else:
        words = "the same tree" if difference is None else f"another tree: {difference}"
        output.say(
            f"{words} ({format_count(figures['nodes'], 'node')},"
            f" {format_count(len(log.script), 'change')} of the rollouts in flight,"
            f" {format_count(figures['cancelled_nodes'], 'node')} cancelled)"
        )
    if difference is not None:
        raise typer.Exit(exit_codes.NO_RESULT)


async def _replay(log: Any, config: Config) -> Any:
    from flashedge.answers.grouping import WordGroups
    from flashedge.answers.workers.embedding_groups import build_embedding_groups
    from flashedge.answers.workers.mathematics import MathGrader
    from flashedge.runtime.rollouts.replay import replay

    grader, texts = MathGrader(), build_embedding_groups(config) or WordGroups()
    try:
        return await replay(log, grader, texts)
    finally:
        await grader.close()
        await texts.close()
