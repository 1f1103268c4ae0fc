"""Words that messages of the CLI, the dashboard, exports and the event log share."""

from collections.abc import Mapping
from typing import Any


def format_count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def format_duration(seconds: float) -> str:
    """A length of time in the largest unit that it fills: 12 s, 3 min, 2 h, 5 d."""
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def describe_wait(position: int | None, starts_in_s: float | None) -> str:
    """Describe a run that waits: `2 before it, starts in about 12 s`. Empty if both are None."""
    parts = []
    if position is not None:
        parts.append(f"{position} before it" if position else "next")
    if starts_in_s is not None:
        about = "a second" if starts_in_s < 1.5 else format_duration(starts_in_s)
        parts.append(f"starts in about {about}")
    return ", ".join(parts)


def describe_prediction(median_tokens: float, tail_tokens: float) -> str:
    """Describe the predicted length of a path: `about 420, 1 in 10 over 532 tokens`."""
    return f"about {median_tokens:,.0f}, 1 in 10 over {tail_tokens:,.0f} tokens"


def count_cut(result: Mapping[str, Any]) -> int:
    """Count the paths of a result that a token limit ended before they had an answer."""
    completions = result.get("completions") or []
    others = ("stop", "unsure")
    return sum(c["answer"] is None and c["finish_reason"] not in others for c in completions)


def explain_no_answer(result: Mapping[str, Any]) -> tuple[str, str]:
    """Return (why a run ended without an answer, what to do or an empty text)."""
    completions = result.get("completions") or []
    cut = count_cut(result)
    if not completions and result.get("cut_by") == "deadline":
        return "No answer: the deadline passed before a path was complete.", "Raise --deadline."
    if not completions and result.get("cut_by"):
        ended_by = result["cut_by"].replace("_", " ")
        return f"No answer: the run was ended by its {ended_by} before a path was complete.", ""
    if completions and cut == len(completions):
        return (
            "No answer: every path reached its token limit first.",
            "Raise --max-tokens, or --set max_step_tokens and max_steps.",
        )
    return (
        "No answer: no path has a boxed one, or names one without a box.",
        "For a problem with an open-ended answer add: --answers text",
    )


def describe_distrust(score: float | None = None) -> str:
    """Warn of a result whose `trusted` is false. score: of the chosen path, where known."""
    shown = "" if score is None else f" ({score:.2f})"
    return f"The verifier gives this answer a low score{shown}. It is probably wrong."


UNBOXED = (
    "No path has a boxed answer. This is the answer that the paths name without a box"
    " (`Answer: …`, `#### …`, `<answer>…</answer>`)."
)
"""Warns of a result whose `unboxed` is true."""
UNLIKELY = (
    "The search gave up: no path that it could still find is good enough by the verifier."
    " The answer is the best so far, and unlikely to be right."
)
"""Warns of a result whose `unlikely` is true."""


def list_doubts(result: Mapping[str, Any], score: float | None = None) -> list[str]:
    """List what speaks against a result's answer. score: of the chosen path, where known."""
    doubts = [UNLIKELY] if result.get("unlikely") else []
    if not doubts and result.get("trusted") is False:
        doubts = [describe_distrust(score)]
    return [*doubts, UNBOXED] if result.get("unboxed") else doubts
