"""The engines of generators draw what transformers and vLLM itself draw: tokens, log-probabilities,
and the ends of steps.

`test_scores.py` compares the verifier. The thinking model is tiny and random, in fp32 on the CPU.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM

from flashedge.engine.base import ExtendRequest
from flashedge.engine.vllm import compat
from flashedge.engine.vllm.codec import HFCodec
from flashedge.engine.vllm.generator import VllmGenerator, build_params
from flashedge.engine.vllm.inside.keys import ARGS_KEY, LOGPROBS
from flashedge.engine.vllm.process.start import start_fork_server
from flashedge.engine.vllm.stock import StockGenerator
from flashedge.search.step_rules import BoundaryRule
from flashedge.types import BLANK_LINE, MARKERS, STEP_RULES, TOKENS, FinishReason, Problem, Sampling
from tests.engine.conftest import build_tiny_options, started
from tests.engine.test_driver_on_vllm import problems
from tests.support.engine_rig import ask, generate, generate_all
from tests.support.tiny_checkpoints import make_checkpoint

TOLERANCE = 1e-3


async def compare_with_transformers(
    generator: VllmGenerator, problem: Problem, max_tokens: int
) -> list[int]:
    """Draw greedily: each token is the likeliest one of transformers. Returns the tokens."""
    folder = generator.options.model
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    request = ask(generator, problem, temperature=0.0, max_tokens=max_tokens)
    found = await generate(generator, request)
    prompt, ids = request.token_ids, list(found.token_ids)
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    assert logits.argmax(-1).tolist() == ids
    expected = logits.log_softmax(-1)[torch.arange(len(ids)), ids].tolist()
    assert found.logprobs == pytest.approx(expected, abs=TOLERANCE)
    return ids


async def test_the_generator_agrees_with_transformers(generator: VllmGenerator) -> None:
    for problem in problems("heldout.jsonl", 6):
        await compare_with_transformers(generator, problem, 256)


async def collect(generator: VllmGenerator, request: Any, params: Any, pause_s: float) -> Any:
    """(token ids, packed log-probabilities, vLLM's own, outputs). The reader pauses after the
    first output, and vLLM joins what comes meanwhile."""
    ids: list[int] = []
    packed: list[float] = []
    own: list[float] = []
    count = 0
    prompt = {"prompt_token_ids": list(request.token_ids)}
    name = f"logprobs-{pause_s}-{len(params.extra_args[ARGS_KEY])}"
    async for output in generator.process.get_llm().generate(prompt, params, name):
        part = output.outputs[0]
        packed += (output.kv_transfer_params or {}).get(LOGPROBS, ())
        own += [row[i].logprob for row, i in zip(part.logprobs or (), part.token_ids, strict=False)]
        ids += part.token_ids
        count += 1
        await asyncio.sleep(pause_s if count == 1 else 0)
    return ids, packed, own, count


@pytest.mark.parametrize(("pause_s", "each_token"), [(0.0, True), (0.5, True), (0.0, False)])
async def test_packed_log_probabilities_are_vllms_own(
    generator: VllmGenerator, problem: Problem, pause_s: float, each_token: bool
) -> None:
    """Also where tokens are joined, by vLLM in the daemon or by us in the engine."""
    request = ask(generator, problem, seed=3, max_tokens=24, each_token=each_token)
    params = build_params(request, generator.codec, generator.max_model_len)
    ids, packed, none, count = await collect(generator, request, params, pause_s)
    args = {k: v for k, v in params.extra_args[ARGS_KEY].items() if k != LOGPROBS}
    plain = build_params(
        request, generator.codec, generator.max_model_len, extra_args={ARGS_KEY: args}
    )
    same, nothing, own, _ = await collect(generator, request, plain, pause_s)
    assert same == ids
    assert packed == own
    assert len(packed) == len(ids) > 5
    assert none == nothing == []
    if pause_s > 0 or not each_token:
        assert count < len(ids)


@pytest.mark.parametrize("seed", [1, 2])
def test_shared_parameters_are_those_that_vllm_would_check(seed: int) -> None:
    codec: Any = SimpleNamespace(eos_ids=frozenset({5, 3}))
    request = ExtendRequest(
        token_ids=(1,), seed=seed, sampling=Sampling(), max_tokens=9, to_boundary=True
    )
    shared, checked = (build_params(request, codec, 64, **o) for o in ({}, {"detokenize": False}))
    assert shared == checked
    assert shared.stop_token_ids == [3, 5]
    assert shared.extra_args[ARGS_KEY]["seed"] == seed


# ---------------------------------------------------------------- a thinking model's architecture


PROBLEM = Problem.from_text("Janet's ducks lay 16 eggs per day. How many are left?")
COMMON = range(97, 123)  # tokens that stand for the marker words, which this vocabulary lacks


class Codec(HFCodec):
    """Its marker words are a few tokens that a random model draws often."""

    @property
    def rules(self) -> dict[str, BoundaryRule]:
        markers = replace(super().rules[TOKENS], holds=frozenset(COMMON))
        return {**super().rules, MARKERS: markers}


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def model(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmGenerator]:
    compat.prepare_environment()
    start_fork_server()
    folder = make_checkpoint("qwen3_generator", tmp_path_factory.mktemp("model") / "qwen3")
    async with started(VllmGenerator(build_tiny_options("generator", folder), Codec(folder))) as it:
        yield it


async def test_a_thinking_model_agrees_with_transformers(model: VllmGenerator) -> None:
    drawn = await compare_with_transformers(model, PROBLEM, 32)
    assert len(set(drawn)) > 8, "a loop of few tokens would prove little"


async def test_steps_end_by_every_rule_where_the_stock_twin_ends_them(model: VllmGenerator) -> None:
    stock, finishes = StockGenerator(model), {}
    for rule in STEP_RULES:
        common: dict[str, Any] = {"max_tokens": 48, "temperature": 1.0, "step_rule": rule}
        requests = [ask(model, PROBLEM, seed=s, to_boundary=True, **common) for s in range(16)]
        ours, theirs = await generate_all(model, requests), await generate_all(stock, requests)
        assert [(o.token_ids, o.finish) for o in ours] == [(o.token_ids, o.finish) for o in theirs]
        whole = await generate_all(model, [replace(r, to_boundary=False) for r in requests])
        for step, path in zip(ours, whole, strict=True):
            cut = model.codec.rules[rule].split_ids(path.token_ids)[0]
            assert step.token_ids == cut, "a rule changes no token"
        finishes[rule] = [o.finish for o in ours]
    assert FinishReason.BOUNDARY in finishes[MARKERS]
    assert FinishReason.BOUNDARY not in finishes[TOKENS]
    assert finishes[BLANK_LINE] != finishes[MARKERS]
