"""What a verify pass accepts: the right guesses, and the token behind them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flashedge.engine.vllm.inside.determinism.replay import PAD, fill_window
from flashedge.engine.vllm.inside.determinism.verify import REJECTED, accept

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=4))
def test_each_request_gets_the_right_guesses_and_one_more(
    requests: list[tuple[list[int], list[int]]],
) -> None:
    width = max(len(drawn) for drawn, _ in requests)
    drawn = [[*tokens, *[tokens[-1]] * (width - len(tokens))] for tokens, _ in requests]
    guesses = [guessed[: len(tokens) - 1] for tokens, guessed in requests]
    for tokens, guessed, found in zip(drawn, guesses, accept(drawn, guesses), strict=True):
        kept = [token for token in found if token != REJECTED]
        assert found == [*kept, *[REJECTED] * (width - len(kept))]
        assert 1 <= len(kept) <= len(guessed) + 1
        assert kept == tokens[: len(kept)], "what the pass drew"
        assert kept[:-1] == guessed[: len(kept) - 1], "from inputs that were right"
        if len(kept) <= len(guessed):
            assert kept[-1] != guessed[len(kept) - 1], "it went on as far as it could"


def test_a_window_without_candidates_is_padded() -> None:
    assert fill_window([5, 6], 4) == [5, 6, PAD, PAD]
    assert fill_window([5, 6, 7], 2) == [5, 6]
