"""Best of 16 open-ended answers by an outcome model: the real generator, a real classifier."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.engine.base import EngineProxy, ScoreRequest, StepScores
from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.generator import VllmGenerator
from flashedge.engine.vllm.prm import find_family
from flashedge.engine.vllm.verifier import VllmVerifier
from flashedge.runtime.drive.driver import Driver
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.request.request import Request
from flashedge.runtime.request.strategies import build_search
from flashedge.search.tree import NodeStatus
from flashedge.types import Problem
from tests.engine.test_prm_families import judge_by_classifier
from tests.support.tiny_checkpoints import POSITIONS, make_checkpoint

N = 16

pytestmark = pytest.mark.asyncio(loop_scope="session")


class CountingVerifier(EngineProxy[VllmVerifier]):
    """Remembers what it was asked."""

    def __init__(self, engine: VllmVerifier) -> None:
        super().__init__(engine)
        self.asked: list[ScoreRequest] = []

    async def score(self, request: ScoreRequest) -> StepScores:
        self.asked.append(request)
        return await self._engine.score(request)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def judge(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[Path, CountingVerifier]]:
    kind = "sequence_classification"
    folder = make_checkpoint(kind, tmp_path_factory.mktemp("outcome") / kind)
    options = EngineOptions(
        name="verifier",
        model=folder,
        dtype="float32",
        max_model_len=POSITIONS,
        kv_bytes=8 << 20,
        max_num_seqs=N,
    )
    verifier = VllmVerifier(options, find_family(kind)(folder, {}))
    await verifier.start()
    yield folder, CountingVerifier(verifier)
    await verifier.stop()


async def test_the_answer_that_the_outcome_model_likes_best_is_chosen(
    generator: VllmGenerator, judge: tuple[Path, CountingVerifier], problem: Problem
) -> None:
    folder, verifier = judge
    spec = Request(
        problem=problem,
        pair="outcome",
        strategy="best_of_n",
        n=N,
        selection="best",
        answers="whole",
        aggregate="prod",
        max_path_tokens=80,
    )
    engines = Engines(generator=generator, verifier=verifier, grader=MathGrader(), judges="answers")
    prompt = generator.codec.encode_chat(problem.messages)
    search = build_search(spec, "answers")
    outcome = await Driver(search, spec, prompt, engines, lambda event: None).run()
    tree = outcome.tree
    paths = [node.id for node in tree.nodes.values() if node.status is NodeStatus.COMPLETE]
    texts = {node: tree.path_text(node) for node in paths}
    assert sorted(r.steps for r in verifier.asked) == sorted({(t,) for t in texts.values()})
    with torch.inference_mode():
        expected = {
            node: judge_by_classifier(folder, text, problem.text)[0] for node, text in texts.items()
        }
    assert max(expected.values()) - min(expected.values()) > 0.1
    for node in paths:
        assert tree.path_scores(node) == pytest.approx((expected[node],), abs=1e-4)
    assert outcome.finish.choice == max(paths, key=lambda node: (expected[node], -node))
    assert outcome.finish.answer == texts[outcome.finish.choice].strip()
