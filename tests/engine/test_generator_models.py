"""A thinking model's architecture on a real engine: its greedy tokens are those of transformers,
and its steps end by every rule where the stock twin ends them.

The checkpoint is tiny and random, in fp32 on the CPU.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM

from flashedge.engine.vllm import compat
from flashedge.engine.vllm.codec import HFCodec
from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.generator import VllmGenerator
from flashedge.engine.vllm.process.start import start_fork_server
from flashedge.engine.vllm.stock import StockGenerator
from flashedge.search.steps import BoundaryRule
from flashedge.types import BLANK_LINE, MARKERS, STEP_RULES, TOKENS, FinishReason, Problem
from tests.support.engine_rig import ask, generate, generate_all
from tests.support.tiny_checkpoints import POSITIONS, make_checkpoint

PROBLEM = Problem.from_text("Janet's ducks lay 16 eggs per day. How many are left?")
COMMON = range(97, 123)  # tokens that stand for the marker words, which this vocabulary lacks

pytestmark = pytest.mark.asyncio(loop_scope="session")


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
    options = EngineOptions(
        name="generator",
        model=folder,
        dtype="float32",
        max_model_len=POSITIONS,
        kv_bytes=8 << 20,
        max_num_seqs=16,
    )
    generator = VllmGenerator(options, Codec(folder))
    await generator.start()
    yield generator
    await generator.stop()


def generate_plainly(folder: Path, ids: tuple[int, ...], count: int) -> tuple[int, ...]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = list(ids)
    with torch.inference_mode():
        for _ in range(count):
            found.append(int(model(torch.tensor([found])).logits[0, -1].argmax()))
    return tuple(found[len(ids) :])


async def test_greedy_tokens_are_those_of_transformers(model: VllmGenerator) -> None:
    request = ask(model, PROBLEM, temperature=0.0, max_tokens=32)
    drawn = (await generate(model, request)).token_ids
    assert len(set(drawn)) > 8, "a loop of few tokens would prove little"
    assert drawn == generate_plainly(model.options.model, request.token_ids, len(drawn))


async def test_steps_end_by_every_rule_where_the_stock_twin_ends_them(model: VllmGenerator) -> None:
    stock, finishes = StockGenerator(model), {}
    for rule in STEP_RULES:
        requests = [
            replace(
                ask(model, PROBLEM, seed=seed, max_tokens=48, temperature=1.0, to_boundary=True),
                step_rule=rule,
            )
            for seed in range(16)
        ]
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
