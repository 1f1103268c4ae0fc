"""The bundled weights give the same logits in vLLM as in plain transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import flashedge
from flashedge.engine.base import ExtendRequest, ScoreRequest
from flashedge.engine.vllm.generator import VllmGenerator
from flashedge.engine.vllm.verifier import VllmVerifier
from flashedge.search.steps import split_steps
from flashedge.types import Problem, Sampling
from tests.support.bundled_prm import BundledPrm
from tests.support.paths import DATA

BUNDLED = Path(flashedge.__file__).parent / "bundled"
HELDOUT = DATA / "heldout.jsonl"
TOLERANCE = 1e-3
COUNT = 6

pytestmark = pytest.mark.asyncio(loop_scope="session")


def read_problems() -> list[Problem]:
    lines = HELDOUT.read_text().splitlines()[:COUNT]
    return [Problem.from_text(json.loads(line)["problem"]) for line in lines]


async def generate_greedily(
    generator: VllmGenerator, problem: Problem
) -> tuple[list[int], list[int], list[float]]:
    """Returns the prompt, a greedy chain, and its log-probabilities."""
    prompt = generator.codec.encode_chat(problem.messages)
    request = ExtendRequest(
        token_ids=prompt,
        seed=0,
        sampling=Sampling(temperature=0.0),
        max_tokens=256,
        to_boundary=False,
    )
    chunks = [chunk async for chunk in generator.extend(request)]
    ids = [i for chunk in chunks for i in chunk.token_ids]
    return list(prompt), ids, [p for chunk in chunks for p in chunk.logprobs]


async def test_the_generator_agrees_with_transformers(generator: VllmGenerator) -> None:
    model = AutoModelForCausalLM.from_pretrained(BUNDLED / "generator", dtype=torch.float32).eval()
    for problem in read_problems():
        prompt, ids, logprobs = await generate_greedily(generator, problem)
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == ids
        expected = logits.log_softmax(-1)[torch.arange(len(ids)), ids].tolist()
        assert logprobs == pytest.approx(expected, abs=TOLERANCE)


async def test_the_verifier_agrees_with_transformers(
    generator: VllmGenerator, verifier: VllmVerifier
) -> None:
    prm = BundledPrm()
    all_scores: list[float] = []
    for problem in read_problems():
        _, ids, _ = await generate_greedily(generator, problem)
        steps = split_steps(generator.codec.decode(ids))
        found = await verifier.score(ScoreRequest(problem=problem, steps=steps))
        expected = prm.score(problem.text, steps)
        assert found.scores == pytest.approx(expected, abs=TOLERANCE)
        all_scores += expected
    assert max(all_scores) - min(all_scores) > 0.5, "scores that hardly differ would prove nothing"
