"""`runs replay`: build the tree of a boosted run again from its log, and compare."""

from __future__ import annotations

import asyncio
from typing import Any

import typer

from flashedge.cli import exit_codes, output
from flashedge.client.words import format_count
from flashedge.config import Config


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
