"""Drafts of tokens on the real engine, which never change a token or a log-probability. They are
forced: as long as the text allows, in every step, and often wrong."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from vllm import SamplingParams
from vllm.inputs import tokens_input
from vllm.sampling_params import StructuredOutputsParams

from flashedge.engine.base import ExtendRequest
from flashedge.engine.http_requests import RequestTags
from flashedge.engine.vllm.generator import VllmGenerator
from flashedge.engine.vllm.pair import VllmPair
from flashedge.engine.vllm.serving.tagged_client import tag_params
from flashedge.runtime.drive.engines import Engines
from flashedge.search.step_rules import EntropyRule
from flashedge.types import STRATEGIES, FinishReason, Problem, Sampling
from scripts.lab.scheduler_pair import FORCED
from tests.engine.conftest import started
from tests.engine.test_speculation_on_vllm import count_growth
from tests.support.engine_rig import (
    Outcome,
    ask,
    drawn,
    generate,
    generate_all,
    long_requests,
    settle,
    squeezed,
)
from tests.support.runtime_rig import drive
from tests.support.small_searches import spec_of

ENDS = {FinishReason.BOUNDARY, FinishReason.STEP_LIMIT, FinishReason.LENGTH}
KEEPING = {"beam", "dvts", "dynamic_branching", "varying_granularity", "rebase"}
"""Strategies whose steps adopt drafts of steps here."""
IDS = itertools.count()


def build_forced(generator: VllmGenerator, **options: Any) -> VllmGenerator:
    extra = {"scheduler_cls": FORCED}
    return VllmGenerator(replace(generator.options, extra=extra, **options), generator.codec)


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def forced(pair: VllmPair) -> AsyncIterator[VllmGenerator]:
    async with started(build_forced(pair.generator)) as generator:
        yield generator


async def count(generator: VllmGenerator) -> tuple[int, int]:
    """(drafted, accepted) tokens so far."""
    counters = (await generator.view()).token_drafts
    return counters["drafted_tokens"], counters["accepted_tokens"]


async def assert_more(generator: VllmGenerator, before: tuple[int, int], accepted: int) -> None:
    """More tokens were drafted than accepted, and at least so many were accepted."""
    grown = [b - a for a, b in zip(before, await count(generator), strict=True)]
    assert grown[0] > grown[1] >= accepted


def list_paths(generator: VllmGenerator, problem: Problem, **fields: Any) -> list[ExtendRequest]:
    """Requests of a program that end at boundaries, at their limits, and with the context. Hot, so
    that the noise decides."""
    asked = {"program": "paths", "token_drafts": True, "temperature": 1.5, **fields}
    paths = [ask(generator, problem, seed=s, max_tokens=37 + s, **asked) for s in range(4)]
    steps = [replace(path, to_boundary=True, max_tokens=200) for path in paths]
    prompt = paths[0].token_ids
    room = generator.max_model_len - len(prompt)
    end = ask(generator, problem, seed=4, after=(prompt * 40)[: room - 25], max_tokens=60, **asked)
    return [*paths, *steps, end]


def read(outcomes: list[Outcome]) -> list[Any]:
    """All but how much of each prompt was in the cache."""
    return [(each.token_ids, each.logprobs, each.finish) for each in outcomes]


# ---------------------------------------------------------------- the same tokens


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_every_strategy_builds_the_same_tree(
    engines: Engines, forced: VllmGenerator, problem: Problem, strategy: str
) -> None:
    """Three times: the second time the whole tree is known, the third time memory is short."""
    spec = spec_of(problem, strategy, early_exit=None, sampling=Sampling(temperature=1.5))
    expected = (await drive(engines.switch(token_drafts=False), spec)).outcome
    drafting = replace(engines, generator=forced, program=strategy)
    async with count_growth(forced) as steps:
        for least_accepted in (1, 40):
            before = await count(forced)
            assert (await drive(drafting, spec)).outcome == expected
            await assert_more(forced, before, least_accepted)
    assert steps["kept_steps"] or strategy not in KEEPING
    async with squeezed(forced):
        assert (await drive(drafting, spec)).outcome == expected
    await settle(forced)


async def test_a_search_is_drafted_from_its_clients_earlier_ones(
    engines: Engines, forced: VllmGenerator, problem: Problem
) -> None:
    """The second search of a client asks what the first one did, and another client does, too."""
    spec = spec_of(problem, "beam", early_exit=None, sampling=Sampling(temperature=1.5))
    accepted, trees = {}, []
    for program, client in (("first", "me"), ("again", "me"), ("theirs", "other")):
        before = await count(forced)
        drafting = replace(engines, generator=forced, program=program, client=client)
        trees.append((await drive(drafting, spec)).outcome.tree)
        accepted[program] = (await count(forced))[1] - before[1]
    assert trees[0] == trees[1] == trees[2]
    assert accepted["again"] > 1.3 * max(accepted["first"], accepted["theirs"])


async def test_every_end_of_a_request(
    generator: VllmGenerator, forced: VllmGenerator, problem: Problem
) -> None:
    asked = list_paths(forced, problem)
    alone = read([await generate(generator, replace(r, token_drafts=False)) for r in asked])
    assert {finish for *_, finish in alone} == ENDS
    for least_accepted in (1, 40):
        before = await count(forced)
        assert read(await generate_all(forced, asked)) == alone
        await assert_more(forced, before, least_accepted)


async def test_preempted_and_cancelled_requests(
    generator: VllmGenerator, forced: VllmGenerator, problem: Problem
) -> None:
    hot = {"sampling": Sampling(temperature=3.0), "max_tokens": 300}
    asked = [
        replace(request, token_drafts=True, program="long", **hot)  # type: ignore[arg-type]
        for request in await long_requests(generator, problem)
    ]
    alone = drawn(await generate_all(generator, asked))
    before, drafted = await forced.view(), await count(forced)
    for pause_s in (0.0, 0.1, 0.2):
        tasks = [asyncio.create_task(generate(forced, request)) for request in asked]
        gone = [asyncio.create_task(generate(forced, request)) for request in asked[:2]]
        await asyncio.sleep(pause_s)
        async with squeezed(forced):
            await asyncio.sleep(pause_s)
            for task in gone:
                task.cancel()
            assert drawn(await asyncio.gather(*tasks)) == alone
    assert (await forced.view()).preemptions > before.preemptions
    await assert_more(forced, drafted, 100)
    await settle(forced)


# ---------------------------------------------------------------- others in the same batch


PLAIN: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"presence_penalty": 1.5, "repetition_penalty": 1.3},
    {"logit_bias": {20: 50.0}},
    {"allowed_token_ids": [*range(15, 30)]},
    {"min_p": 0.2, "top_k": 9},
    {"bad_words": ["1", "3"], "min_tokens": 60, "max_tokens": 70},
    {"structured_outputs": StructuredOutputsParams(regex="[0-9]{20,40}")},
    {"logprob_token_ids": [5, 6, 7], "logprobs": None},
]


async def draw_plain(
    generator: VllmGenerator, problem: Problem, *, drafts: bool, **fields: Any
) -> Any:
    """The tokens of a plain request, and the log-probabilities that come with each."""
    given = SamplingParams(**{"max_tokens": 40, "logprobs": 3, "temperature": 1.5, **fields})
    tags = RequestTags(client="c", seed=7, is_seeded=True)
    params = tag_params(given, tags, think_tags=None, drafts=drafts)
    prompt = tokens_input(list(ask(generator, problem).token_ids))
    name = f"plain-{next(IDS)}"
    with generator.process.open_request(name) as llm:
        outputs = [output async for output in llm.generate(prompt, params, name)]
    found = outputs[-1].outputs[0]
    assert found.logprobs is not None
    values = [{token: one.logprob for token, one in each.items()} for each in found.logprobs]
    return found.token_ids, values, found.finish_reason


@pytest.mark.parametrize("fields", PLAIN, ids=lambda fields: " ".join(fields))
async def test_plain_requests_beside_a_search(
    generator: VllmGenerator, forced: VllmGenerator, problem: Problem, fields: dict[str, Any]
) -> None:
    await compare_beside(generator, forced, problem, fields, list_paths(forced, problem), 40)


async def compare_beside(
    generator: VllmGenerator,
    forced: VllmGenerator,
    problem: Problem,
    fields: dict[str, Any],
    paths: list[ExtendRequest],
    accepted: int,
) -> None:
    """A plain request gets the same tokens alone and beside paths whose tokens are drafted."""
    alone = await draw_plain(generator, problem, drafts=False, **fields)
    before = await count(forced)
    beside, *_ = await asyncio.gather(
        draw_plain(forced, problem, drafts=True, **fields), *(generate(forced, r) for r in paths)
    )
    assert beside == alone
    if "logprob_token_ids" not in fields:  # nothing is drafted beside it
        await assert_more(forced, before, accepted)


@pytest.mark.parametrize(
    "fields",
    [{"entropy_rule": EntropyRule(threshold=1.0, min_tokens=3)}, {"deterministic": True}],
    ids=lambda fields: " ".join(fields),
)
async def test_some_requests_are_not_drafted(
    generator: VllmGenerator, forced: VllmGenerator, problem: Problem, fields: dict[str, Any]
) -> None:
    """Alone no token of them is. Beside others their tokens stay the same."""
    request = ask(forced, problem, temperature=1.5, token_drafts=True, **fields)
    alone, before = await generate(generator, request), await count(forced)
    for _ in range(2):
        assert read([await generate(forced, request)]) == read([alone])
    assert await count(forced) == before
    beside, *_ = await generate_all(forced, [request, *list_paths(forced, problem)])
    assert drawn([beside]) == drawn([alone])
    await assert_more(forced, before, 1)


async def test_an_asynchronous_engine_drafts_nothing(
    generator: VllmGenerator, problem: Problem
) -> None:
    asked = list_paths(generator, problem)
    async with started(build_forced(generator, async_scheduling=True)) as engine:
        for _ in range(2):
            found = read(await generate_all(engine, asked))
        assert await count(engine) == (0, 0)
    assert found == read(await generate_all(generator, asked))
