"""Deterministic requests and searches on kernels whose sums depend on the batch, and without each
safeguard.

Each runs in one process, on the bundled pair in bf16 with emulated kernels
(`scripts/bench/determinism`): this machine's own are too even to miss a safeguard.
"""

import json
import os
import subprocess
import sys
from collections import defaultdict
from typing import Any

import pytest

from tests.support.paths import ROOT


def measure(module: str, *options: str) -> Any:
    command = [sys.executable, "-m", f"scripts.bench.determinism.{module}", "--quick", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def found() -> Any:
    return measure("requests")


@pytest.fixture(scope="module")
def found_async() -> Any:
    """The same with two steps in flight, as on a card."""
    return measure("requests", "--asynchronous")


@pytest.mark.parametrize("engine", ["found", "found_async"])
@pytest.mark.parametrize("kernels", ["batch", "row"])
def test_the_flag_gives_the_same_bits_alone_and_beside_others(
    engine: str, kernels: str, request: pytest.FixtureRequest
) -> None:
    cases = request.getfixturevalue(engine)["cases"]
    cases = [case for case in cases if case["kernels"] == kernels]
    flagged = [case for case in cases if case["deterministic"]]
    plain = [case for case in cases if not case["deterministic"]]
    assert flagged
    assert all((case["differ"], case["logprobs_differ"]) == (0, 0) for case in flagged)
    assert all(case["preemptions"] for case in flagged)
    assert all(case["logprobs_differ"] >= case["requests"] / 4 for case in plain), (
        "else it proves nothing"
    )
    assert all(case["differ"] for case in plain), "some tokens, too; how many the machine decides"


def test_candidates_were_rolled_back(found: Any) -> None:
    assert sum(case["rollbacks"] for case in found["cases"])


@pytest.mark.parametrize(
    "removed",
    ["padding", "isolation", "absolute windows", "commit gate", "salt", "one window a pass"],
)
def test_each_safeguard_is_missed(found: Any, removed: str) -> None:
    rows = {row["removed"]: row for row in found["safeguards"]}
    assert rows[removed]["logprobs_differ"]


def test_the_flag_gives_the_same_trees_scores_and_choices() -> None:
    """Without it they differ. With deterministic tokens alone a score differs, and the tree with
    it: scores need passes of their own."""
    cases = defaultdict[str, list[Any]](list)
    for case in measure("searches")["cases"]:
        cases[case["deterministic"]].append(case)
    flagged = cases["flag"]
    assert len({case["search"] for case in flagged}) == 6
    assert [case["first"] for case in flagged if case["differ"]] == []
    assert all(case["tokens"] for case in flagged)
    assert sum(case["kept_tokens"] for case in flagged), "drafts were used"
    assert cases["none"]
    assert all(case["differ"] for case in cases["none"]), "else it proves nothing"
    [case] = cases["flag, plain scores"]
    assert case["differ"]
    assert "(scores)" in case["first"]
