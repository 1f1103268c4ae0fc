"""The scores of each PRM family on a real engine equal those of plain transformers. They stay the
same, bit for bit, when KV is reused.

The checkpoints are tiny and random, one of each architecture, in fp32 on the CPU.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Qwen2Model

from flashedge.engine.base import ScoreRequest
from flashedge.engine.vllm import compat
from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.prm import FAMILIES, PrmFormat, find_family
from flashedge.engine.vllm.verifier import VllmVerifier
from flashedge.types import Problem
from tests.support.tiny_checkpoints import POSITIONS, make_checkpoint

PROBLEM = Problem.from_text(
    "Janet's ducks lay 16 eggs per day. She eats three for breakfast every morning and bakes "
    "muffins with four. She sells the rest for 2 each. How much does she make per day?"
)
STEPS = (
    "First, we find how many eggs are left: 16 - 3 = 13.\n\n",
    "Then she bakes,\nso 13 - 4 = {} eggs are left.\n\n",
    "She sells {} eggs for 2 each, which makes {} * 2 per day.\n\n",
    "So the total is {} + {}.\n\n",
    "Therefore, the answer is: \\boxed{{{}}}",
)
PATHS = tuple(tuple(s.format(*[n] * s.count("{}")) for s in STEPS) for n in range(7, 200, 9))
TOLERANCE = 1e-4

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]


# ---------------------------------------------------------------- scores by transformers


def run_body(folder: Path, ids: list[int]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Returns the last hidden states (num_tokens, hidden_size) of a Qwen2 body, and all weights."""
    weights = load_file(folder / "model.safetensors")
    body = Qwen2Model(Qwen2Config.from_pretrained(folder)).eval()
    own = {n.removeprefix("model."): w for n, w in weights.items() if n.startswith("model.")}
    body.load_state_dict(own)
    return body(torch.tensor([ids])).last_hidden_state[0], weights


def score_by_classes(folder: Path, ids: list[int]) -> torch.Tensor:
    hidden, weights = run_body(folder, ids)
    inner = torch.relu(hidden @ weights["score.0.weight"].T + weights["score.0.bias"])
    return (inner @ weights["score.2.weight"].T + weights["score.2.bias"]).softmax(-1)[:, 1]


def score_by_values(folder: Path, ids: list[int]) -> torch.Tensor:
    hidden, weights = run_body(folder, ids)
    values = hidden @ weights["v_head.summary.weight"].T + weights["v_head.summary.bias"]
    return values.sigmoid()[:, 0]


def score_by_labels(folder: Path, ids: list[int]) -> torch.Tensor:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    candidates = [tokenizer.encode(label)[-1] for label in ("+", "-")]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model(torch.tensor([ids])).logits[0][:, candidates].softmax(-1)[:, 0]


EXPECTED: dict[str, Callable[[Path, list[int]], torch.Tensor]] = {
    "qwen_prm": score_by_classes,
    "skywork": score_by_values,
    "step_tag": score_by_labels,
    "rlhflow": score_by_labels,
}


def compute_expected_scores(rig: Rig, steps: tuple[str, ...]) -> list[float]:
    """One plain pass over the ids that the format gives, read at its scored tokens."""
    ids, scored = list(rig.prm.encode_problem(PROBLEM)), []
    for index, text in enumerate(steps):
        step, upto = rig.prm.encode_step(text, index)
        scored.append(len(ids) + upto - 1)
        ids += step
    with torch.inference_mode():
        return EXPECTED[rig.name](rig.folder, ids)[scored].tolist()


# ---------------------------------------------------------------- the engine


@dataclass(frozen=True)
class Rig:
    name: str
    folder: Path
    prm: PrmFormat
    verifier: VllmVerifier


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=sorted(FAMILIES))
async def rig(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Rig]:
    compat.prepare_environment()
    compat.start_fork_server()
    name = request.param
    folder = make_checkpoint(name, tmp_path_factory.mktemp("prm") / name)
    prm = find_family(name)(folder, {})
    options = EngineOptions(
        name="verifier",
        model=folder,
        dtype="float32",
        max_model_len=POSITIONS,
        kv_bytes=8 << 20,
        max_num_seqs=16,
    )
    verifier = VllmVerifier(options, prm)
    await verifier.start()
    yield Rig(name, folder, prm, verifier)
    await verifier.stop()


async def test_scores_equal_plain_transformers(rig: Rig) -> None:
    all_scores: list[float] = []
    for path in PATHS[:6]:
        request = ScoreRequest(problem=PROBLEM, steps=path)
        found = await rig.verifier.score_whole(request)
        expected = compute_expected_scores(rig, path)
        assert found.scores == pytest.approx(expected, abs=TOLERANCE)
        all_scores += expected
    assert max(all_scores) - min(all_scores) > 0.1, "scores that hardly differ would prove nothing"


async def test_scoring_step_by_step_equals_whole_paths_bit_for_bit(rig: Rig) -> None:
    async def score_step_by_step(path: tuple[str, ...]) -> tuple[tuple[float, ...], int]:
        scores: tuple[float, ...] = ()
        cached = 0
        for upto in range(1, len(path) + 1):
            request = ScoreRequest(problem=PROBLEM, steps=path[:upto], num_scored=len(scores))
            result = await rig.verifier.score(request)
            scores += result.scores
            cached += result.cached_tokens
        return scores, cached

    together = await asyncio.gather(*(score_step_by_step(path) for path in PATHS))
    for path, (scores, cached) in zip(PATHS, together, strict=True):
        request = ScoreRequest(problem=PROBLEM, steps=path)
        whole = await rig.verifier.score_whole(request)
        assert whole.cached_tokens == 0
        assert cached > whole.tokens, "no KV was reused, so nothing is compared"
        assert scores == whole.scores
        half = await rig.verifier.score_whole(replace(request, num_scored=2))
        assert half.scores == whole.scores[2:]
