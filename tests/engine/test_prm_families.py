"""Each PRM family on a real engine: equal to plain transformers, and to itself when KV is re-used.

A tiny random checkpoint of each architecture, fp32 on the CPU; one engine at a time.
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
from flashedge.engine.vllm.prm import FAMILIES, PrmFormat, family
from flashedge.engine.vllm.verifier import VllmVerifier
from flashedge.types import Problem
from tests.engine.tiny_checkpoints import POSITIONS, make_checkpoint

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


# ---------------------------------------------------------------- what transformers says


def _hidden(folder: Path, ids: list[int]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Last hidden states (num_tokens, hidden_size) of a Qwen2 body, and all weights."""
    weights = load_file(folder / "model.safetensors")
    body = Qwen2Model(Qwen2Config.from_pretrained(folder)).eval()
    own = {n.removeprefix("model."): w for n, w in weights.items() if n.startswith("model.")}
    body.load_state_dict(own)
    return body(torch.tensor([ids])).last_hidden_state[0], weights


def _of_classes(folder: Path, ids: list[int]) -> torch.Tensor:
    hidden, weights = _hidden(folder, ids)
    inner = torch.relu(hidden @ weights["score.0.weight"].T + weights["score.0.bias"])
    return (inner @ weights["score.2.weight"].T + weights["score.2.bias"]).softmax(-1)[:, 1]


def _of_values(folder: Path, ids: list[int]) -> torch.Tensor:
    hidden, weights = _hidden(folder, ids)
    values = hidden @ weights["v_head.summary.weight"].T + weights["v_head.summary.bias"]
    return values.sigmoid()[:, 0]


def _of_labels(folder: Path, ids: list[int]) -> torch.Tensor:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    candidates = [tokenizer.encode(label)[-1] for label in ("+", "-")]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model(torch.tensor([ids])).logits[0][:, candidates].softmax(-1)[:, 0]


EXPECTED: dict[str, Callable[[Path, list[int]], torch.Tensor]] = {
    "qwen_prm": _of_classes,
    "skywork": _of_values,
    "step_tag": _of_labels,
    "rlhflow": _of_labels,
}


def expected_scores(rig: Rig, steps: tuple[str, ...]) -> list[float]:
    """One plain pass over the ids that the format writes; scores at its scored tokens."""
    ids, scored = list(rig.prm.prefix(PROBLEM)), []
    for index, text in enumerate(steps):
        step, upto = rig.prm.step(text, index)
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
    prm = family(name)(folder, {})
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
    seen: list[float] = []
    for path in PATHS[:6]:
        request = ScoreRequest(problem=PROBLEM, steps=path)
        found = await rig.verifier.score_whole(request)
        expected = expected_scores(rig, path)
        assert found.scores == pytest.approx(expected, abs=TOLERANCE)
        seen += expected
    assert max(seen) - min(seen) > 0.1, "scores that hardly differ would prove nothing"


async def test_scoring_step_by_step_equals_whole_paths_bit_for_bit(rig: Rig) -> None:
    async def grown(path: tuple[str, ...]) -> tuple[tuple[float, ...], int]:
        scores: tuple[float, ...] = ()
        cached = 0
        for upto in range(1, len(path) + 1):
            request = ScoreRequest(problem=PROBLEM, steps=path[:upto], num_scored=len(scores))
            result = await rig.verifier.score(request)
            scores += result.scores
            cached += result.cached_tokens
        return scores, cached

    together = await asyncio.gather(*(grown(path) for path in PATHS))
    for path, (scores, cached) in zip(PATHS, together, strict=True):
        request = ScoreRequest(problem=PROBLEM, steps=path)
        whole = await rig.verifier.score_whole(request)
        assert whole.cached_tokens == 0
        assert cached > whole.tokens, "nothing was re-used: the test would compare like with like"
        assert scores == whole.scores
        half = await rig.verifier.score_whole(replace(request, num_scored=2))
        assert half.scores == whole.scores[2:]
