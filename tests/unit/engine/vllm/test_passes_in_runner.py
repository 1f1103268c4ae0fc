"""Passes in the model runner: what a verify pass accepts, and a verifier's head in tiles."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from vllm import PoolingParams
from vllm.model_executor.layers.pooler.tokwise.heads import TokenClassifierPoolerHead

from flashedge.engine.vllm.inside.determinism.runner import REJECTED, TILE, accept, forward_chunk
from flashedge.engine.vllm.inside.keys import ARGS_KEY, DETERMINISTIC

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=4))
def test_right_guesses_and_one_more_are_kept(requests: list[tuple[list[int], list[int]]]) -> None:
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


def classify(rows: torch.Tensor) -> torch.Tensor:
    """A head whose result depends on the number of rows, and on the row's place."""
    places = torch.arange(len(rows)).unsqueeze(1)
    return rows.sum(dim=1, keepdim=True) + len(rows) * 1000 + places * 10_000


def score(rows: torch.Tensor | None, *, deterministic: bool = True) -> Any:
    ours: Any = {ARGS_KEY: {DETERMINISTIC: deterministic}}
    params = PoolingParams(task="token_classify", use_activation=False, extra_kwargs=ours)
    return forward_chunk(TokenClassifierPoolerHead(classifier=classify), rows, params)


@pytest.mark.parametrize("count", [1, TILE - 1, TILE, TILE + 1, 3 * TILE + 5])
def test_a_row_depends_on_itself_and_on_its_position(count: int) -> None:
    rows = torch.arange(4.0 * count).reshape(count, 4)
    found = score(rows)
    assert found.shape == (count, 1)
    for cached in range(TILE, count, TILE):  # behind a prefix from the cache
        assert torch.equal(score(rows[cached:]), found[cached:])


def test_other_requests_get_vllms_own() -> None:
    rows = torch.ones(TILE + 1, 4)
    assert torch.equal(score(rows, deterministic=False), classify(rows))
    assert score(None) is None, "a chunk that is not the last"
