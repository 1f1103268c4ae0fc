"""A verifier that was trained here scores in vLLM as in the code that trained it, for a Qwen2 and
for a Llama, which is served as a Qwen2."""

from pathlib import Path

import pytest
import torch

from flashedge.engine.base import ScoreRequest
from flashedge.engine.vllm import compat
from flashedge.engine.vllm.prm.qwen import QwenPrm
from flashedge.engine.vllm.process.start import start_fork_server
from flashedge.engine.vllm.verifier import VllmVerifier
from flashedge.search.step_rules import split_steps
from flashedge.types import Problem
from scripts.train_prm.model import RewardModel, load_body, merge_adapter, save_adapter
from scripts.train_prm.samples import Solutions, encode_rows
from scripts.train_prm.trainer import Plan, train
from tests.engine.conftest import build_tiny_options, started
from tests.support.tiny_checkpoints import POSITIONS, make_checkpoint

TEXTS = tuple(
    f"First, we add {n} and 3.\n\nSo {n} + 3 = {n + 3}.\n\nThe answer is \\boxed{{{n + 3}}}"
    for n in range(6)
)
SOLUTIONS = Solutions(
    problem="Janet's ducks lay 16 eggs per day. How many are left?",
    texts=TEXTS,
    answers=TEXTS,
    right=(True, False) * 3,
)


@pytest.mark.parametrize(
    ("kind", "token"), [("qwen_prm", "<extra_0>"), ("llama_generator", "<|end_of_text|>")]
)
async def test_vllm_scores_as_the_training_code(kind: str, token: str, tmp_path: Path) -> None:
    compat.prepare_environment()
    start_fork_server()
    base = make_checkpoint(kind, tmp_path / "base")
    rows = encode_rows(QwenPrm(base, {"step_token": token}), SOLUTIONS, POSITIONS)
    torch.manual_seed(0)
    model = RewardModel(load_body(base), rank=4)
    plan = Plan(seconds=1e9, epochs=30, problems=1, seed=0, until=1e18)
    assert train(model, [rows], plan, tmp_path) is not None
    with torch.no_grad():
        model.rescale(3.0, 0.5)
        expected = [odds.sigmoid().tolist() for odds in model.compute_log_odds(rows)]
    save_adapter(model, tmp_path / "adapter.safetensors")
    merge_adapter(base, tmp_path / "adapter.safetensors", tmp_path / "model")

    prm = QwenPrm(tmp_path / "model", {"step_token": token})
    options = build_tiny_options("verifier", tmp_path / "model")
    problem = Problem.from_text(SOLUTIONS.problem)
    async with started(VllmVerifier(options, prm)) as verifier:
        for text, scores in zip(TEXTS, expected, strict=True):
            found = await verifier.score(ScoreRequest(problem=problem, steps=split_steps(text)))
            assert found.scores == pytest.approx(scores, abs=1e-4)
    assert max(map(max, expected)) - min(map(min, expected)) > 0.1, "a wrong place would show"
