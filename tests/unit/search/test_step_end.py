"""Where a requested step ends: one rule for the simulator and for drafts in vLLM's scheduler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashedge.search.steps import BoundaryRule, StepEnd
from flashedge.types import FinishReason

WORD, NEWLINE, BLANK_LINE, EOS = 5, 6, 7, 0
RULE = BoundaryRule(
    holds=frozenset({BLANK_LINE}),
    closes=frozenset({NEWLINE}),
    opens=frozenset({NEWLINE}),
    blank=frozenset({NEWLINE, BLANK_LINE}),
)
END = StepEnd(max_tokens=8, room=100, boundary=RULE, stop_ids=frozenset({EOS}))


@pytest.mark.parametrize(
    ("end", "token_ids", "expected"),
    [
        (END, [WORD, WORD], (2, None)),
        (END, [WORD, BLANK_LINE, WORD], (2, FinishReason.BOUNDARY)),
        (END, [WORD, NEWLINE, NEWLINE, WORD], (3, FinishReason.BOUNDARY)),
        (END, [BLANK_LINE, WORD, BLANK_LINE], (3, FinishReason.BOUNDARY)),
        (END, [WORD, EOS, WORD], (2, FinishReason.STOP)),
        (END, [WORD] * 9, (8, FinishReason.STEP_LIMIT)),
        (replace(END, room=3), [WORD] * 9, (3, FinishReason.LENGTH)),
        (replace(END, room=8), [WORD] * 9, (8, FinishReason.LENGTH)),
        (replace(END, boundary=None), [WORD, BLANK_LINE, WORD], (3, None)),
    ],
)
def test_a_step_is_cut_where_it_ends(
    end: StepEnd, token_ids: list[int], expected: tuple[int, FinishReason | None]
) -> None:
    assert end.cut(token_ids) == expected


@pytest.mark.parametrize("limit", ["room", "max_tokens"])
def test_a_boundary_counts_where_it_uses_up_the_last_token(limit: str) -> None:
    """As for the stock loop, whose stop string counts before vLLM's length limit."""
    end = replace(END, **{limit: 2})
    assert end.cut([WORD, BLANK_LINE]) == (2, FinishReason.BOUNDARY)
    assert end.cut([WORD, EOS]) == (2, FinishReason.STOP)
