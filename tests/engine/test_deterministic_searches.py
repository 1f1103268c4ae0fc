"""Whole searches on kernels whose sums depend on the batch: alone, and beside load.

One process runs all of it on the bundled pair in bf16 with emulated kernels
(`scripts/bench/determinism/searches.py`): this machine's own are too even to miss a safeguard.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.paths import ROOT


@pytest.fixture(scope="module")
def found() -> Any:
    command = [sys.executable, "-m", "scripts.bench.determinism.searches", "--quick"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])["cases"]


def list_cases(found: Any, safety: str) -> list[Any]:
    return [case for case in found if case["deterministic"] == safety]


def test_the_flag_gives_the_same_trees_scores_and_choices(found: Any) -> None:
    flagged = list_cases(found, "flag")
    assert len({case["search"] for case in flagged}) == 6
    assert [case["first"] for case in flagged if case["differ"]] == []
    assert all(case["tokens"] for case in flagged)
    assert sum(case["kept_tokens"] for case in flagged), "drafts were used"


def test_without_it_they_differ(found: Any) -> None:
    plain = list_cases(found, "none")
    assert plain
    assert all(case["differ"] for case in plain), "else it proves nothing"


def test_scores_need_passes_of_their_own(found: Any) -> None:
    """With deterministic tokens alone a score differs, and the tree with it."""
    [case] = list_cases(found, "flag, plain scores")
    assert case["differ"]
    assert "(scores)" in case["first"]
