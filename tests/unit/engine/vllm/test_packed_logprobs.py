"""Log-probabilities as plain numbers: what the engine sends and what the daemon joins."""

from __future__ import annotations

import math

import numpy as np
import pytest
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.outputs import LogprobsLists

from flashedge.engine.vllm.inside.keys import DRAWN, ENTROPIES, LOGPROBS
from flashedge.engine.vllm.inside.packed_logprobs import join_outputs, pack_logprobs
from flashedge.search.entropy import TOP


def test_each_token_keeps_its_own_logprob_and_the_output_its_other_extras() -> None:
    rows = LogprobsLists(
        np.array([[7, 3], [5, 3]]),
        np.array([[-0.1, -2.5], [-1.7, -0.4]], dtype=np.float32),
        np.array([1, 2]),
    )
    output = EngineCoreOutput("a", [7, 5], new_logprobs=rows, kv_transfer_params={DRAWN: 2})
    pack_logprobs(output)
    assert output.new_logprobs is None
    packed = [float(np.float32(-0.1)), float(np.float32(-1.7))]
    assert output.kv_transfer_params == {DRAWN: 2, LOGPROBS: packed}


def test_entropies_are_those_of_the_likeliest_tokens() -> None:
    """The first number of a row is the drawn token's, which may be among the likeliest."""
    likeliest = np.log(np.full((1, TOP), 0.04, dtype=np.float32))
    for drawn in (-9.0, float(likeliest[0, 0])):
        row = np.concatenate([np.full((1, 1), drawn, dtype=np.float32), likeliest], axis=1)
        rows = LogprobsLists(np.zeros_like(row, dtype=np.int64), row, np.array([1]))
        output = EngineCoreOutput("a", [7], new_logprobs=rows)
        pack_logprobs(output, with_entropies=True)
        extras = output.kv_transfer_params or {}
        assert extras[LOGPROBS] == [drawn]
        expected = -TOP * 0.04 * math.log(0.04) - 0.2 * math.log(0.2)
        assert extras[ENTROPIES] == pytest.approx([expected])


def test_an_output_without_tokens_has_no_entropies() -> None:
    """A step that ends before the drawn token."""
    none = np.empty((0, TOP + 1), dtype=np.float32)
    rows = LogprobsLists(np.zeros((0, TOP + 1), dtype=np.int64), none, np.array([]))
    output = EngineCoreOutput("a", [], new_logprobs=rows)
    pack_logprobs(output, with_entropies=True)
    assert output.kv_transfer_params == {LOGPROBS: [], ENTROPIES: []}


def make_output(token: int, **extras: object) -> RequestOutput:
    part = CompletionOutput(0, "", [token], None, None)
    return RequestOutput("a", None, [1], None, [part], False, kv_transfer_params=extras or None)


def test_joined_outputs_have_the_logprobs_of_all_their_tokens() -> None:
    output = make_output(1, **{LOGPROBS: [-1.0]})
    join_outputs(output, make_output(2, **{LOGPROBS: [-2.0], DRAWN: 4}), aggregate=True)
    join_outputs(output, make_output(3, **{LOGPROBS: [-3.0]}), aggregate=True)
    assert output.outputs[0].token_ids == [1, 2, 3]
    assert output.kv_transfer_params == {LOGPROBS: [-1.0, -2.0, -3.0]}


def test_joined_outputs_have_the_entropies_of_all_their_tokens() -> None:
    output = make_output(1, **{LOGPROBS: [-1.0], ENTROPIES: [0.5]})
    join_outputs(output, make_output(2, **{LOGPROBS: [-2.0], ENTROPIES: [1.5]}), aggregate=True)
    join_outputs(output, make_output(3, **{LOGPROBS: [], ENTROPIES: []}), aggregate=True)
    assert output.kv_transfer_params == {LOGPROBS: [-1.0, -2.0], ENTROPIES: [0.5, 1.5]}


def test_other_outputs_are_joined_as_vllm_does() -> None:
    output = make_output(1)
    join_outputs(output, make_output(2), aggregate=True)
    assert output.kv_transfer_params is None
    join_outputs(output, make_output(3, remote="x"), aggregate=True)
    assert output.kv_transfer_params == {"remote": "x"}
