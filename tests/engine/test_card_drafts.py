"""Drafts of tokens on vLLM's second runner, which never change a token or a log-probability. Every
step is as wide as it can be.

They need that runner, which takes three minutes for them in Triton's interpreter:

    TRITON_INTERPRET=1 PYTHONPATH=tests/support/interpreted
        FLASHEDGE_FEATURES=second_runner=on,async_scheduling=on
        pytest -n0 tests/engine/test_card_drafts.py
"""

import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from flashedge.engine.vllm.generator import VllmGenerator
from flashedge.engine.vllm.pair import VllmPair
from flashedge.scheduling.speculation.token_drafts import MOST_ON_CARD
from flashedge.types import Problem
from tests.engine.conftest import started
from tests.engine.test_token_drafts import (
    PLAIN,
    build_forced,
    compare_beside,
    list_paths,
    test_every_end_of_a_request,
    test_preempted_and_cancelled_requests,
)

pytestmark = pytest.mark.skipif(
    "second_runner=on" not in os.environ.get("FLASHEDGE_FEATURES", ""),
    reason="FLASHEDGE_FEATURES does not switch the second runner on",
)
__all__ = ["test_every_end_of_a_request", "test_preempted_and_cancelled_requests"]
NOT_INTERPRETED = {"structured_outputs"}
"""Triton's interpreter can't run vLLM's kernel for grammars."""


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def forced(pair: VllmPair) -> AsyncIterator[VllmGenerator]:
    options = {"card_drafts": MOST_ON_CARD, "token_drafts": True}
    async with started(build_forced(pair.generator, **options)) as generator:
        yield generator


@pytest.mark.parametrize(
    "fields",
    [fields for fields in PLAIN if not fields.keys() & NOT_INTERPRETED],
    ids=lambda fields: " ".join(fields),
)
async def test_plain_requests_beside_a_search(
    generator: VllmGenerator, forced: VllmGenerator, problem: Problem, fields: dict[str, Any]
) -> None:
    await compare_beside(generator, forced, problem, fields, list_paths(forced, problem)[:3], 10)
