"""The scores of each PRM family on a real engine equal those of plain transformers. They stay the
same, bit for bit, when KV is reused.

The checkpoints are tiny and random, one of each architecture, in fp32 on the CPU. Their scores vary
from token to token, so that a score which is read at the wrong token fails.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Qwen2Config,
    Qwen2Model,
)

from flashedge.engine.base import ScoreRequest
from flashedge.engine.http_requests import PlainRequests, RequestTags, tag_requests
from flashedge.engine.vllm import compat
from flashedge.engine.vllm.prm import FAMILIES, find_family
from flashedge.engine.vllm.prm.base import AnswerFormat, PrmFormat
from flashedge.engine.vllm.process.start import start_fork_server
from flashedge.engine.vllm.serving.scores import VllmScores
from flashedge.engine.vllm.verifier import VllmVerifier
from flashedge.models.specs import VERIFIER_FAMILIES
from flashedge.types import Problem
from tests.engine.conftest import build_tiny_options, started
from tests.support.engine_rig import joined, score_by_steps
from tests.support.tiny_checkpoints import make_checkpoint

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


# ---------------------------------------------------------------- scores by transformers


@cache
def load_body(folder: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    """A Qwen2 body, and all weights."""
    weights = load_file(folder / "model.safetensors")
    body = Qwen2Model(Qwen2Config.from_pretrained(folder)).eval()
    own = {n.removeprefix("model."): w for n, w in weights.items() if n.startswith("model.")}
    body.load_state_dict(own)
    return body, weights


def run_body(folder: Path, ids: list[int]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Returns the last hidden states, (num_tokens, hidden_size), and all weights."""
    body, weights = load_body(folder)
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


def judge_by_classifier(
    folder: Path, answer: str, problem: str = PROBLEM.text
) -> tuple[float, torch.Tensor]:
    """As the model card of Skywork-Reward-V2 does it, and the score at every token."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    chat = [{"role": "user", "content": problem}, {"role": "assistant", "content": answer}]
    text = tokenizer.apply_chat_template(chat, tokenize=False)
    if tokenizer.bos_token is not None:
        text = text.removeprefix(tokenizer.bos_token)
    inputs = tokenizer(text, return_tensors="pt")
    everywhere = model.score(model.model(**inputs).last_hidden_state[0])
    return model(**inputs).logits[0][0].sigmoid().item(), everywhere.sigmoid()[:, 0]


def judge_by_question(folder: Path, answer: str) -> tuple[float, torch.Tensor]:
    """P("Yes") against P("No") as the next token, and the same behind every token."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    question = (
        f"Problem: {PROBLEM.text}\n\nSolution: {answer.strip()}\n\nIs the answer correct (Yes/No)?"
    )
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=False,
    )
    labels = [tokenizer.convert_tokens_to_ids(label) for label in ("Yes", "No")]
    logits = model(tokenizer(text, return_tensors="pt").input_ids).logits[0]
    everywhere = logits[:, labels].softmax(-1)[:, 0]
    return everywhere[-1].item(), everywhere


@dataclass(frozen=True)
class Case:
    """A checkpoint and how its scores are computed by plain transformers."""

    kind: str
    """The name in `KINDS`."""
    family: str
    score_ids: Callable[[Path, list[int]], torch.Tensor] | None = None
    """Of a judge of steps: the score at every one of the ids."""
    judge: Callable[[Path, str], tuple[float, torch.Tensor]] | None = None
    """Of a judge of answers: an answer's score, and the score at every token."""


CASES = (
    Case("qwen_prm", "qwen_prm", score_by_classes),
    Case("reasonflux", "reasonflux", score_by_classes),
    Case("skywork", "skywork", score_by_values),
    Case("step_tag", "step_tag", score_by_labels),
    Case("rlhflow", "rlhflow", score_by_labels),
    Case("sequence_classification", "sequence_classification", judge=judge_by_classifier),
    Case("llama_classification", "sequence_classification", judge=judge_by_classifier),
    Case("yes_no", "yes_no", judge=judge_by_question),
)


@dataclass(frozen=True)
class Rig:
    case: Case
    folder: Path
    prm: PrmFormat | AnswerFormat
    verifier: VllmVerifier


def compute_expected_scores(rig: Rig, steps: tuple[str, ...]) -> tuple[list[float], torch.Tensor]:
    """Returns a path's scores, and the score at every token, of a judge of steps.

    One plain pass over the ids that the format gives, read at its scored tokens.
    """
    assert isinstance(rig.prm, PrmFormat)
    assert rig.case.score_ids is not None
    ids, scored = list(rig.prm.encode_problem(PROBLEM)), []
    for index, text in enumerate(steps):
        step, upto = rig.prm.encode_step(text, index)
        scored.append(len(ids) + upto - 1)
        ids += step
    with torch.inference_mode():
        everywhere = rig.case.score_ids(rig.folder, ids)
    return everywhere[scored].tolist(), everywhere


# ---------------------------------------------------------------- the engine


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=CASES, ids=lambda c: c.kind)
async def rig(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Rig]:
    compat.prepare_environment()
    start_fork_server()
    case: Case = request.param
    folder = make_checkpoint(case.kind, tmp_path_factory.mktemp("prm") / case.kind)
    prm = find_family(case.family)(folder, {})
    async with started(VllmVerifier(build_tiny_options("verifier", folder), prm)) as verifier:
        yield Rig(case, folder, prm, verifier)


async def test_every_family_is_compared() -> None:
    assert {case.family for case in CASES} == set(FAMILIES)


async def test_scores_equal_plain_transformers(rig: Rig) -> None:
    for path in PATHS[:6]:
        found = await rig.verifier.score_whole(build_request(rig, path))
        if rig.case.judge is None:
            expected, everywhere = compute_expected_scores(rig, path)
        else:
            with torch.inference_mode():
                score, everywhere = rig.case.judge(rig.folder, "".join(path))
            expected = [score]
        assert everywhere.std() >= 0.1, "a score read at the wrong token must differ"
        assert found.scores == pytest.approx(expected, abs=TOLERANCE)


async def test_kv_of_a_shorter_path_is_reused_without_a_bit_changed(rig: Rig) -> None:
    if rig.case.judge is not None:
        pytest.skip("a judge of answers scores a path once")

    together = await asyncio.gather(*(score_by_steps(rig.verifier, PROBLEM, p) for p in PATHS))
    for path, parts in zip(PATHS, together, strict=True):
        request = ScoreRequest(problem=PROBLEM, steps=path)
        whole = await rig.verifier.score_whole(request)
        assert whole.cached_tokens == 0
        cached = sum(part.cached_tokens for part in parts)
        assert cached > whole.tokens, "no KV was reused, so nothing is compared"
        assert joined(parts) == whole.scores
        half = await rig.verifier.score_whole(replace(request, num_scored=2))
        assert half.scores == whole.scores[2:]


async def test_answers_to_one_problem_share_its_kv(rig: Rig) -> None:
    if rig.case.judge is None:
        pytest.skip("a judge of steps")
    requests = [build_request(rig, path) for path in PATHS]
    first = await rig.verifier.score(requests[0])
    together = await asyncio.gather(*(rig.verifier.score(r) for r in requests))
    assert together[0].scores == first.scores
    assert together[0].cached_tokens == first.tokens, "the same answer is not computed again"
    for request, found in zip(requests[1:], together[1:], strict=True):
        whole = await rig.verifier.score_whole(request)
        assert found.cached_tokens > 0
        assert found.scores == whole.scores
        assert len(found.scores) == 1


async def test_vllms_own_scores_of_pairs(rig: Rig) -> None:
    """Only of families that vLLM itself loads as a classifier with one label."""
    if not VERIFIER_FAMILIES[rig.case.family].scores_pairs:
        pytest.skip("vLLM scores no pairs of texts by it")
    app: Any = VllmScores(rig.verifier.process, "judge", PlainRequests())
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    answers = ["".join(path) for path in PATHS[:3]]
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        tag_requests(RequestTags(client="me", seed=7, program="p", priority=3)),
    ):
        asked = {"model": "judge", "text_1": PROBLEM.text, "text_2": answers}
        found = (await client.post("/v1/score", json=asked)).json()
        refused = await client.post("/score", json={**asked, "text_1": ["a", "b"]})
    tokenizer = AutoTokenizer.from_pretrained(rig.folder)
    model: Any = AutoModelForSequenceClassification.from_pretrained(
        rig.folder, dtype=torch.float32
    ).eval()
    with torch.inference_mode():
        texts = [tokenizer(PROBLEM.text, answer, return_tensors="pt") for answer in answers]
        expected = [model(**text).logits[0][0].sigmoid().item() for text in texts]
    scores = [one["score"] for one in found["data"]]
    assert scores == pytest.approx(expected, abs=TOLERANCE)
    assert (found["object"], found["model"]) == ("list", "judge")
    assert refused.status_code == 400


def build_request(rig: Rig, path: tuple[str, ...]) -> ScoreRequest:
    """A path's steps, or its whole text as one answer, as a search sends them."""
    steps = path if rig.case.judge is None else ("".join(path),)
    return ScoreRequest(problem=PROBLEM, steps=steps)
