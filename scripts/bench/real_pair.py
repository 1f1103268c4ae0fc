"""A pair in vLLM in this process, and whether its answers are right."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.config import load_config
from flashedge.engine.vllm.pair import VllmPair
from flashedge.models.registry import find_pair
from flashedge.types import NodeId


@asynccontextmanager
async def open_pair(name: str = "bundled") -> AsyncIterator[tuple[VllmPair, MathGrader]]:
    """Start a pair, as the usual settings say, and a grader."""
    config = load_config({})
    pair, grader = VllmPair(find_pair(name, config), config), MathGrader()
    await pair.start()
    try:
        yield pair, grader
    finally:
        await grader.close()
        await pair.stop()


async def is_right(grader: MathGrader, answer: str | None, known: str) -> bool:
    """Whether an answer equals the known one."""
    found = await grader.cluster({NodeId(0): answer, NodeId(1): known})
    return answer is not None and found[NodeId(0)] == found[NodeId(1)]
