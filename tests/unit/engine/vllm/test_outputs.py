"""Log-probabilities as plain numbers, and outputs that are joined."""

import math
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.metrics.stats import PrefillStats
from vllm.v1.outputs import LogprobsLists

from flashedge.engine.vllm.inside.keys import (
    ADOPTED,
    ARGS_KEY,
    CONFIDENCES,
    EACH_TOKEN,
    ENTROPIES,
    LOGPROBS,
)
from flashedge.engine.vllm.inside.outputs import PERIOD_S, JoinedTokens, join_outputs, pack_logprobs
from flashedge.search.step_rules import TOP


def test_each_token_keeps_its_own_logprob_and_the_output_its_other_extras() -> None:
    numbers = np.array([[-0.1, -2.5], [-1.7, -0.4]], dtype=np.float32)
    rows = LogprobsLists(np.array([[7, 3], [5, 3]]), numbers, np.array([1, 2]))
    output = EngineCoreOutput("a", [7, 5], new_logprobs=rows, kv_transfer_params={ADOPTED: 2})
    pack_logprobs(output)
    assert output.new_logprobs is None
    packed = [float(np.float32(-0.1)), float(np.float32(-1.7))]
    assert output.kv_transfer_params == {ADOPTED: 2, LOGPROBS: packed}


def test_entropies_are_those_of_the_likeliest_tokens() -> None:
    """The first number of a row is the drawn token's, which may be among the likeliest."""

    def pack(row: NDArray[np.float32]) -> dict[str, Any]:
        rows = LogprobsLists(np.zeros_like(row, dtype=np.int64), row, np.ones(len(row)))
        output = EngineCoreOutput("a", [7] * len(row), new_logprobs=rows)
        pack_logprobs(output, ENTROPIES)
        return output.kv_transfer_params or {}

    likeliest = np.log(np.full((1, TOP), 0.04, dtype=np.float32))
    expected = -TOP * 0.04 * math.log(0.04) - 0.2 * math.log(0.2)
    for drawn in (-9.0, float(likeliest[0, 0])):
        extras = pack(np.concatenate([np.full((1, 1), drawn, dtype=np.float32), likeliest], axis=1))
        assert extras[LOGPROBS] == [drawn]
        assert extras[ENTROPIES] == pytest.approx([expected])
    none = np.empty((0, TOP + 1), dtype=np.float32)
    assert pack(none) == {LOGPROBS: [], ENTROPIES: []}, "an output without tokens"


def test_confidences_under_a_grammar_are_finite() -> None:
    row = np.full((2, TOP + 1), -np.inf, dtype=np.float32)
    row[:, :2] = [[-1.5, -0.5], [0, 0]]
    row[0, 2] = -1.5
    rows = LogprobsLists(np.zeros_like(row, dtype=np.int64), row, np.ones(2))
    output = EngineCoreOutput("a", [7, 8], new_logprobs=rows)
    pack_logprobs(output, CONFIDENCES)
    assert output.kv_transfer_params == {LOGPROBS: [-1.5, 0.0], CONFIDENCES: [1.0, 0.0]}


def make_output(token: int, **extras: object) -> RequestOutput:
    part = CompletionOutput(0, "", [token], None, None)
    return RequestOutput("a", None, [1], None, [part], False, kv_transfer_params=extras or None)


def test_joined_outputs_have_the_numbers_of_all_their_tokens() -> None:
    """Others are joined as vLLM does."""
    output = make_output(1, **{LOGPROBS: [-1.0], ENTROPIES: [0.5]})
    second = {LOGPROBS: [-2.0], ENTROPIES: [1.5], ADOPTED: 4}
    join_outputs(output, make_output(2, **second), aggregate=True)
    join_outputs(output, make_output(3, **{LOGPROBS: [-3.0], ENTROPIES: []}), aggregate=True)
    assert output.outputs[0].token_ids == [1, 2, 3]
    assert output.kv_transfer_params == {LOGPROBS: [-1.0, -2.0, -3.0], ENTROPIES: [0.5, 1.5]}
    output = make_output(1)
    join_outputs(output, make_output(2), aggregate=True)
    assert output.kv_transfer_params is None
    join_outputs(output, make_output(3, remote="x"), aggregate=True)
    assert output.kv_transfer_params == {"remote": "x"}


OURS: dict[str, Any] = {LOGPROBS: True}
REQUESTS = {"a": OURS, "b": OURS, "each": {**OURS, EACH_TOKEN: True}, "vllm": {}}


class Engine:
    """Steps in which requests draw the tokens 0, 1, 2 …, whose log-probability is -token."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.joined = JoinedTokens(lambda: self.now_s)
        self.drawn = dict.fromkeys(REQUESTS, 0)
        self.sent: dict[str, list[EngineCoreOutput]] = {name: [] for name in REQUESTS}

    def step(self, *names: str, ending: Collection[str] = (), took_s: float = 0.0) -> int:
        """Returns how many outputs were sent."""
        self.now_s += took_s
        requests: Any = {name: make_request(REQUESTS[name]) for name in names}
        scheduled: Any = SimpleNamespace(num_scheduled_tokens=dict.fromkeys(names, 1))
        self.joined.begin_update(scheduled, requests, lambda own: own)
        outputs = {0: EngineCoreOutputs(outputs=[self._draw(n, n in ending) for n in names])}
        self.joined.end_update(outputs)
        sent = [output for of_client in outputs.values() for output in of_client.outputs]
        for output in sent:
            self.sent[output.request_id].append(output)
        return len(sent)

    def _draw(self, name: str, is_last: bool) -> EngineCoreOutput:
        token = self.drawn[name]
        self.drawn[name] += 1
        row = np.array([[-token]], dtype=np.float32)
        return EngineCoreOutput(
            name,
            [token],
            new_logprobs=LogprobsLists(np.array([[token]]), row, np.array([1])),
            finish_reason=FinishReason.STOP if is_last else None,
            prefill_stats=PrefillStats() if token == 0 else None,
        )

    def read(self, name: str) -> list[int]:
        return [token for output in self.sent[name] for token in output.new_token_ids]


def make_request(args: dict[str, Any]) -> Any:
    return SimpleNamespace(sampling_params=SimpleNamespace(extra_args={ARGS_KEY: args}, logprobs=0))


def test_tokens_go_out_together_and_a_step_that_ends_at_once() -> None:
    engine = Engine()
    assert engine.step("a", "b") == 0
    assert engine.step("a", "b", ending=("b",)) == 1
    assert (engine.read("a"), engine.read("b")) == ([], [0, 1])
    assert (engine.step("a", took_s=PERIOD_S), engine.read("a")) == (1, [0, 1, 2])
    (output,) = engine.sent["a"]
    assert (output.kv_transfer_params or {})[LOGPROBS] == [0.0, -1.0, -2.0]
    assert output.prefill_stats is not None, "the first output had them"
    assert output.new_logprobs is None


def test_who_asks_for_each_token_gets_it_and_vllm_its_own_form() -> None:
    engine = Engine()
    assert engine.step("each", "vllm", "a") == 2
    assert engine.sent["each"][0].new_logprobs is None
    assert engine.sent["vllm"][0].new_logprobs is not None
    outputs = {0: EngineCoreOutputs(), 1: EngineCoreOutputs(finished_requests={"x"})}
    engine.joined.end_update(outputs)
    assert list(outputs) == [1], "a message without outputs is sent if it says something else"


def test_the_tokens_of_a_draft_join_those_behind_them_under_the_name_of_its_step() -> None:
    engine = Engine()
    scheduled: Any = SimpleNamespace(num_scheduled_tokens={"draft-1": 1, "draft-2": 1})
    requests: Any = {name: make_request(OURS) for name in ("draft-1", "draft-2")}
    engine.joined.begin_update(scheduled, requests, {"draft-1": "a", "draft-2": None}.get)
    replay = EngineCoreOutput("a", [7, 8], kv_transfer_params={LOGPROBS: [-7.0, -8.0], ADOPTED: 2})
    outputs = {0: EngineCoreOutputs(outputs=[replay])}
    engine.joined.end_update(outputs)
    assert not outputs
    engine.step("a", ending=("a",))
    (output,) = engine.sent["a"]
    assert output.new_token_ids == [7, 8, 0]
    assert output.kv_transfer_params == {LOGPROBS: [-7.0, -8.0, 0.0], ADOPTED: 2}


def test_nothing_is_sent_of_an_aborted_request() -> None:
    engine = Engine()
    engine.step("a", "b")
    engine.joined.forget("a")
    assert engine.step("b", took_s=PERIOD_S) == 1
    engine.step("b")
    engine.joined.forget(None)
    assert engine.step("each", took_s=PERIOD_S) == 1
    assert (engine.read("a"), engine.read("b")) == ([], [0, 1])


NAMES = st.sets(st.sampled_from(list(REQUESTS)))


@given(st.lists(st.tuples(NAMES, NAMES, st.sampled_from((0.0, 0.6 * PERIOD_S, PERIOD_S)))))
def test_each_token_is_sent_once_and_in_order(steps: Any) -> None:
    engine, ended = Engine(), set[str]()
    for names, ending, took_s in steps:
        now = sorted(names - ended)
        engine.step(*now, ending=ending, took_s=took_s)
        for name in now:
            if name in ending or name in ("each", "vllm"):
                assert engine.read(name) == list(range(engine.drawn[name]))
        ended |= ending & set(now)
    engine.step(*sorted(set(REQUESTS) - ended), took_s=2 * PERIOD_S)
    for name in REQUESTS:
        assert engine.read(name) == list(range(engine.drawn[name]))
