"""The packed log-probabilities of the real engine are those that vLLM reports."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from flashedge.engine.vllm.generator import VllmGenerator, build_params
from flashedge.engine.vllm.inside.keys import ARGS_KEY, LOGPROBS
from flashedge.types import Problem
from tests.support.engine_rig import ask

pytestmark = pytest.mark.asyncio(loop_scope="session")


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
async def test_they_are_vllms_own(
    generator: VllmGenerator, problem: Problem, pause_s: float, each_token: bool
) -> None:
    """Also where tokens are joined, by vLLM in the daemon or by us in the engine."""
    asked = ask(generator, problem, seed=3, max_tokens=24)
    request = replace(asked, to_boundary=False, each_token=each_token)
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
