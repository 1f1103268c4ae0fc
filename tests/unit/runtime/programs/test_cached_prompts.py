"""What the policy `prefix` goes by."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flashedge.runtime.programs.cached_prompts import KEPT_PROMPTS, CachedPrompts, count_shared

TOKENS = st.lists(st.integers(0, 2), max_size=40).map(tuple)


@given(TOKENS, TOKENS)
def test_prompts_share_what_both_begin_with(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    shared = count_shared(left, right)
    assert left[:shared] == right[:shared]
    assert left[: shared + 1] != right[: shared + 1] or shared == min(len(left), len(right))


def test_the_longest_of_the_latest_prompts_counts() -> None:
    prompts = CachedPrompts()
    assert prompts.count_shared((1, 2, 3)) == 0
    prompts.note((1, 9))
    prompts.note((1, 2, 3, 4))
    assert prompts.count_shared((1, 2, 3, 5)) == 3
    for number in range(KEPT_PROMPTS):
        prompts.note((7, number))
    assert prompts.count_shared((1, 2, 3, 5)) == 0
