"""The step rule entropy on the real engines: the entropies are the model's, steps end where these
are high, and the stock twin ends them there too."""

import asyncio
from contextlib import aclosing
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from flashedge.engine.base import Chunk
from flashedge.engine.vllm.generator import VllmGenerator
from flashedge.runtime.drive.engines import Engines
from flashedge.search.step_rules import TOP, EntropyRule
from flashedge.types import FinishReason, Speculation, TokenIds
from tests.engine.test_driver_on_vllm import BEAM, HARD
from tests.support.engine_rig import ask, assert_idle
from tests.support.runtime_rig import drive, driver_of

THRESHOLD, MIN_TOKENS, MAX_STEPS = 0.1, 6, 6
TOLERANCE = 1e-3
"""Nats. The two frameworks round logits in other places."""
LIMITS: dict[str, Any] = {"min_step_tokens": MIN_TOKENS, "max_steps": MAX_STEPS}
UNSURE = replace(BEAM, step_rule="entropy", step_entropy=THRESHOLD, **LIMITS)
DRAFTED = replace(BEAM, problem=HARD[1], n=16, seed=21)


@cache
def load_model(folder: str) -> torch.nn.Module:
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


def compute_entropies(generator: VllmGenerator, ids: TokenIds, start: int) -> list[float]:
    """Of the distributions of the tokens from `start` on and of the one that would follow, in
    nats: the TOP likeliest tokens and the rest as one, by PyTorch in float64."""
    model = load_model(str(generator.options.model))
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0, start - 1 :].double()
    shares = logits.softmax(-1).sort(-1, descending=True).values
    merged = torch.cat([shares[:, :TOP], shares[:, TOP:].sum(-1, keepdim=True)], dim=-1)
    return [float(value) for value in torch.special.entr(merged).sum(-1)]


async def read(generator: VllmGenerator, rule: EntropyRule | None) -> tuple[TokenIds, list[Chunk]]:
    request = ask(generator, HARD[0], seed=3, max_tokens=96, temperature=1.0, entropy_rule=rule)
    async with aclosing(generator.extend(request)) as stream:
        return request.token_ids, [chunk async for chunk in stream]


async def test_entropies_are_those_of_the_model(generator: VllmGenerator) -> None:
    prompt, chunks = await read(generator, EntropyRule(threshold=3.0, min_tokens=96))
    drawn = tuple(token for chunk in chunks for token in chunk.token_ids)
    found = [entropy for chunk in chunks for entropy in chunk.entropies]
    expected = compute_entropies(generator, (*prompt, *drawn), len(prompt))[:-1]
    assert max(expected) > 0.5, "a model that is always sure would prove little"
    assert found == pytest.approx(expected, abs=TOLERANCE)
    _, chunks = await read(generator, None)
    assert {chunk.entropies for chunk in chunks} == {()}, "none without the rule"


async def test_steps_end_before_uncertain_tokens_as_in_the_stock_twin(
    generator: VllmGenerator, engines: Engines, stock: Engines
) -> None:
    driver = driver_of(engines, UNSURE, lambda event: None)
    ours = await driver.run()
    assert driver.speculation == Speculation(), "nothing is drafted"
    theirs = (await drive(stock, UNSURE)).outcome
    assert theirs == ours
    prompt = generator.codec.encode_chat(UNSURE.problem.messages)
    ended = at_the_end = 0
    for node in ours.tree.nodes.values():
        if node.segment is None or node.parent is None:
            continue
        size, finish = len(node.segment.token_ids), node.segment.finish
        if node.depth == MAX_STEPS:
            at_the_end += 1
            assert finish is not FinishReason.BOUNDARY, "the last step goes on to the end"
            continue
        path = (*prompt, *ours.tree.path_token_ids(node.id))
        inner = compute_entropies(generator, path, len(path) - size)
        after = inner.pop()
        assert all(entropy <= THRESHOLD + TOLERANCE for entropy in inner[MIN_TOKENS:])
        if finish is FinishReason.BOUNDARY:
            ended += 1
            assert size >= MIN_TOKENS
            assert after > THRESHOLD - TOLERANCE
    assert ended >= 8
    assert at_the_end > 0
    await assert_idle(engines)


@pytest.mark.long
async def test_runs_by_both_rules_share_a_batch(engines: Engines) -> None:
    """vLLM then reports the likeliest tokens for every request, and for drafts too. 10 s."""
    alone = [(await drive(engines, spec)).outcome for spec in (UNSURE, DRAFTED)]
    driver = driver_of(engines, DRAFTED, lambda event: None)
    beside, drafted = await asyncio.gather(drive(engines, UNSURE), driver.run())
    assert [beside.outcome, drafted] == alone
    assert driver.speculation.kept_tokens > 0
    await assert_idle(engines)
