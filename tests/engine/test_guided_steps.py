"""Grammars that go on from step to step of a path, on the real engine."""

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from flashedge.engine.base import ExtendRequest, Generator
from flashedge.engine.vllm.generator import VllmGenerator
from flashedge.engine.vllm.inside.guided_steps import find_guided_path
from flashedge.engine.vllm.inside.keys import ARGS_KEY, GUIDED_FROM
from flashedge.engine.vllm.pair import VllmPair
from flashedge.errors import RequestError
from flashedge.runtime.drive.engines import Engines
from flashedge.types import FinishReason, Problem, Speculation, TokenIds
from tests.engine.test_driver_on_vllm import BEAM
from tests.support.engine_rig import ask, assert_idle, generate, squeezed
from tests.support.runtime_rig import drive, driver_of

NUMBER = {"type": "integer", "minimum": 0, "maximum": 9999}
SCHEMA = {
    "type": "object",
    "properties": {"first": NUMBER, "second": {"type": "array", "items": NUMBER, "maxItems": 4}},
    "required": ["first", "second"],
    "additionalProperties": False,
}
GUIDANCE = {"json": SCHEMA, "disable_any_whitespace": True}
LIMITS: dict[str, Any] = {"max_step_tokens": 4, "max_steps": 6}
SPEC = replace(BEAM, n=4, guidance=GUIDANCE, answers="json", **LIMITS)


def guide(request: ExtendRequest) -> ExtendRequest:
    return replace(request, guidance=GUIDANCE, answer_start=len(request.token_ids))


async def write_in_steps(generator: Generator, whole: ExtendRequest, size: int) -> TokenIds:
    """The path of a request, `size` tokens a request."""
    path: TokenIds = ()
    while True:
        step = replace(whole, token_ids=(*whole.token_ids, *path), max_tokens=size)
        found = await generate(generator, step)
        path = (*path, *found.token_ids)
        if found.finish is not FinishReason.STEP_LIMIT:
            return path


@pytest.mark.parametrize("size", [1, 3, 7])
async def test_steps_write_what_one_request_writes(
    pair: VllmPair, problem: Problem, size: int
) -> None:
    """Position noise draws the same tokens, so any difference would be the grammar's."""
    for seed in range(3):
        whole = guide(ask(pair.generator, problem, seed=seed, max_tokens=120, temperature=1.0))
        path = (await generate(pair.generator, whole)).token_ids
        assert set(json.loads(pair.generator.codec.decode(path))) == {"first", "second"}
        assert await write_in_steps(pair.generator, whole, size) == path
        assert (await generate(pair.stock_generator, whole)).token_ids == path


async def test_guided_steps_survive_scarce_memory(
    generator: VllmGenerator, problem: Problem
) -> None:
    asked = [guide(ask(generator, problem, seed=seed, max_tokens=120)) for seed in range(6)]
    alone = [(await generate(generator, request)).token_ids for request in asked]
    async with squeezed(generator):
        together = await asyncio.gather(*(write_in_steps(generator, r, 5) for r in asked))
    assert list(together) == alone


async def test_a_path_against_its_grammar_fails_alone(
    generator: VllmGenerator, problem: Problem
) -> None:
    good = guide(ask(generator, problem, max_tokens=8))
    text = generator.codec.encode("no object")
    bad = replace(good, token_ids=(*good.token_ids, *text))
    fine, failed = await asyncio.gather(
        generate(generator, good), generate(generator, bad), return_exceptions=True
    )
    assert isinstance(failed, RequestError)  # asking again would not help
    assert not isinstance(fine, BaseException)


@pytest.mark.parametrize("strategy", ["beam", "mcts", "self_consistency"])
async def test_a_guided_search_is_the_stock_loops(
    engines: Engines, stock: Engines, strategy: str
) -> None:
    spec = replace(SPEC, strategy=strategy)
    driver = driver_of(engines, spec, lambda event: None)
    ours = await driver.run()
    assert driver.speculation == Speculation(), "nothing is drafted"
    assert (await drive(stock, spec)).outcome == ours
    found = json.loads(ours.tree.path_text(ours.finish.choice))
    assert set(found) == {"first", "second"}
    assert ours.finish.answer is not None
    assert json.loads(ours.finish.answer) == found
    await assert_idle(engines)


# ---------------------------------------------------------------- models that think

END = 9


class Reasoner:
    def is_reasoning_end(self, ids: list[int]) -> bool:
        return END in ids


@pytest.mark.parametrize(
    ("prompt", "start", "path", "ended"),
    [
        ([1, 2], 2, [], False),
        ([1, 2, 3, 4], 2, [], False),
        ([1, 2, 3, END], 2, [], True),
        ([1, 2, 3, END, 5, 6], 2, [5, 6], True),
        ([1, END, 5, 6], 2, [5, 6], None),
        ([1, END], 2, [], None),
    ],
)
async def test_the_grammar_begins_behind_the_thinking(
    prompt: list[int], start: int, path: list[int], ended: bool | None
) -> None:
    asked = SimpleNamespace(reasoning_ended=None)
    request: Any = SimpleNamespace(
        prompt_token_ids=prompt,
        sampling_params=SimpleNamespace(extra_args={ARGS_KEY: {GUIDED_FROM: start}}),
        structured_output_request=asked,
    )
    manager: Any = SimpleNamespace(enable_in_reasoning=False, _get_reasoner=lambda r: Reasoner())
    assert find_guided_path(manager, request) == path
    assert asked.reasoning_ended is ended
