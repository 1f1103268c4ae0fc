"""/v1/score of a real daemon against plain transformers: the same scores of the same text."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoTokenizer

from flashedge.models.registry import BUNDLED
from flashedge.search.step_rules import split_steps
from scripts.bench.daemon import Daemon
from tests.engine.test_prm_families import score_by_classes
from tests.support.paths import DATA

PRM = BUNDLED / "prm"
TOLERANCE = 1e-3
PROBLEMS = [
    json.loads(line)["problem"] for line in (DATA / "heldout.jsonl").read_text().splitlines()[:4]
]


def score_plainly(problem: str, steps: Sequence[str]) -> list[float]:
    """By plain transformers, as the bundled verifier's card describes it."""
    tokenizer: Any = AutoTokenizer.from_pretrained(PRM)
    turns = [{"role": "user", "content": problem}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    ids, marks = tokenizer.encode(text, add_special_tokens=False), []
    for step in steps:
        ids += tokenizer.encode(step.strip() + "<extra_0>", add_special_tokens=False)
        marks.append(len(ids) - 1)
    with torch.inference_mode():
        scores: list[float] = score_by_classes(PRM, ids)[marks].tolist()
    return scores


@pytest.fixture(scope="module")
def sampled(client: httpx.Client) -> list[tuple[str, list[str]]]:
    """Some problems, each with solutions that the generator wrote, right and wrong ones."""
    found = []
    for problem in PROBLEMS:
        body = {"problem": problem, "strategy": "best_of_n", "n": 6, "temperature": 1.5}
        result = client.post("/v1/solve", json=body).json()
        found.append((problem, sorted({one["text"] for one in result["completions"]})))
    return found


def score(client: httpx.Client, **body: Any) -> dict[str, Any]:
    response = client.post("/v1/score", json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def test_scores_are_those_of_the_model(
    client: httpx.Client, sampled: list[tuple[str, list[str]]]
) -> None:
    gaps, every = [], []
    for problem, texts in sampled:
        found = score(client, problem=problem, solution=texts)
        for one, text in zip(found["data"], texts, strict=True):
            assert one["steps"] == list(split_steps(text))
            expected = score_plainly(problem, one["steps"])
            gaps += [abs(a - b) for a, b in zip(one["step_scores"], expected, strict=True)]
            every += expected
            assert one["score"] == one["step_scores"][-1]
    assert max(gaps) < TOLERANCE
    assert max(every) - min(every) > 0.5, "scores that hardly differ would prove nothing"


def test_solutions_share_the_kv_of_their_problem(client: httpx.Client) -> None:
    problem = "Tom has 57 cards. " + "Each day he draws one and puts it back. " * 9
    found = score(client, problem=problem, solution=[f"He has {n}." for n in range(8)])
    cached = [one["cached_tokens"] for one in found["data"]]
    assert sum(tokens > 64 for tokens in cached) >= 7
    assert found["usage"]["prompt_tokens_details"]["cached_tokens"] == sum(cached)


def test_a_text_of_a_megabyte_holds_up_nobody(client: httpx.Client) -> None:
    body = {"problem": "What is 12 + 7?", "solution": "The answer is 12 + 7 = 19. " * 36_000}
    waits: list[float] = []
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.post, "/v1/score", json=body)
        while not answer.done():
            waits.append(client.get("/health", timeout=60).elapsed.total_seconds())
    assert answer.result().json()["error"]["code"] == "context_length_exceeded"
    assert max(waits) < sum(waits) / 2, "one wait took as long as the encoding"


def test_a_file_of_solutions(served: Daemon, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [
        {"id": "a", "problem": PROBLEMS[0], "solution": "It is 19.\n\nSo 19.", "label": 1},
        {"id": "b", "problem": PROBLEMS[1], "steps": ["It is 18."]},
        {"id": "c", "problem": PROBLEMS[1], "solution": "one and " * 1000},
    ]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ("score", "--input", str(source), "--output", str(target))
    done = served.run_cli(*command)
    assert (done.returncode, done.stdout) == (1, f"2 of 3 scored: {target}\n"), done.stderr
    found = {line["id"]: line for line in map(json.loads, target.read_text().splitlines())}
    assert {name: found["a"][name] for name in lines[0]} == lines[0]
    expected = score_plainly(PROBLEMS[0], ["It is 19.", "So 19."])
    assert found["a"]["scores"][0]["step_scores"] == pytest.approx(expected, abs=TOLERANCE)
    assert len(found["b"]["scores"][0]["step_scores"]) == 1
    assert found["c"]["error"]["code"] == "context_length_exceeded"
    before = target.read_bytes()
    assert served.run_cli(*command).returncode == 1
    assert target.read_bytes() == before
