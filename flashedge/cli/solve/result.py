"""A run's result for people: the answer on stdout, figures and warnings on stderr."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashedge.cli import output
from flashedge.client.words import (
    count_cut,
    describe_distrust,
    describe_unboxed,
    describe_unlikely,
    explain_no_answer,
    format_count,
)

MAX_VOTES = 6


def print_result(result: Mapping[str, Any], *, quiet: bool) -> None:
    """Print the answer alone on stdout, and the chosen path and the figures on stderr.

    Without an answer stdout stays empty: what a script reads there is an answer or nothing.
    """
    if not quiet:
        text = str(result.get("text", "")).strip()
        if text and text != result.get("answer"):
            output.stderr().print(f"\n{text}\n")
        print_figures(result)
    warn_about(result)
    if answer := result.get("answer"):
        output.print_answer(answer)


def warn_about(result: Mapping[str, Any]) -> None:
    """Say on stderr why there is no answer, that the answer is probably wrong, or that a baseline
    can't be compared with its run."""
    if result.get("answer") is None:
        output.warn(" ".join(filter(None, explain_no_answer(result))))
    elif result.get("unlikely"):
        output.warn(describe_unlikely())
    elif result.get("trusted") is False:
        output.warn(describe_distrust(_find_choice(result).get("score")))
    if result.get("unboxed"):
        output.warn(describe_unboxed())
    if result.get("baseline") and result.get("deterministic") is False:
        output.warn(
            "The kernels of this device are not batch-invariant, so the same search without"
            " baseline=true can build another tree: compare many problems, not this one. On a card,"
            " the setting batch_invariant makes both alike."
        )


def print_figures(result: Mapping[str, Any]) -> None:
    """Print on stderr the votes, what the run took, and what cut it short."""
    votes = result.get("votes") or []
    if len(votes) > 1 and not any("\n" in str(vote["answer"]) for vote in votes):
        is_weighted = any(vote["weight"] for vote in votes)
        shown = ", ".join(_describe_vote(vote, is_weighted) for vote in votes[:MAX_VOTES])
        output.note(f"votes ({'paths, weight' if is_weighted else 'paths'}): {shown}")
    usage, timing = result.get("usage") or {}, result.get("timing") or {}
    output.note(
        f"run {result.get('id')}: {usage.get('tree_tokens', 0):,} tokens in"
        f" {timing.get('total_s', 0.0):.2f} s"
    )
    if cut := count_cut(result):
        of = len(result["completions"])
        output.note(f"{cut} of {format_count(of, 'path')} reached a token limit before an answer")
    if fingerprint := result.get("fingerprint"):
        output.note(describe_fingerprint(fingerprint))
    if result.get("cut_by"):
        output.note(f"stopped early: {result['cut_by']}")
    if result.get("early_exit_note"):
        output.note(result["early_exit_note"])


def _describe_vote(vote: Mapping[str, Any], is_weighted: bool) -> str:
    weight = f", {vote['weight']:.2f}" if is_weighted else ""
    return f"{vote['answer']} ({vote['count']}{weight})"


def describe_fingerprint(found: Mapping[str, Any]) -> str:
    """What a deterministic run's bits depend on, in a line."""
    models = (found.get(role) or {} for role in ("generator", "verifier"))
    named = " and ".join(f"{m.get('digest')} ({m.get('dtype')})" for m in models)
    passes = (found.get(f"{role}_passes") or {} for role in ("generator", "verifier"))
    shapes = " and ".join(f"{p.get('window')} x {p.get('group')}" for p in passes)
    return (
        f"deterministic: models {named}; passes of {shapes} tokens; {found.get('vllm')},"
        f" torch {found.get('torch')}; {found.get('device')};"
        f" {format_count(found.get('threads') or 1, 'thread')} an engine"
    )


def _find_choice(result: Mapping[str, Any]) -> Mapping[str, Any]:
    choice = result.get("choice")
    found = (c for c in result.get("completions") or [] if c.get("node") == choice)
    return next(found, {})
