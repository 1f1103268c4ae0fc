"""Each architecture of the shipped generators starts with a small checkpoint, and branches.

The real ones take 10 GB and more. These have their classes, a few layers and random weights.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_checkpoints import KINDS

ROOT = Path(__file__).parents[2]
UNIT = 32
"""Tokens of the blocks of vLLM's CPU build, in which a prefix is found."""
LONG = pytest.mark.long


def branch(kind: str, folder: Path, **extra: Any) -> dict[str, Any]:
    found = subprocess.run(
        [sys.executable, "-m", "tests.support.start_small", kind, folder / kind, json.dumps(extra)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/tests/support/no_images"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert found.returncode == 0, found.stderr[-2000:]
    answer: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return answer


@pytest.mark.parametrize(
    "kind",
    [
        "qwen35_generator",
        "gemma4_generator",
        pytest.param("gpt_oss_generator", marks=LONG),
        pytest.param("qwen3_moe_generator", marks=LONG),
        pytest.param("qwen35_moe_generator", marks=LONG),
    ],
)
def test_a_branch_computes_little_of_its_prefix_again(kind: str, tmp_path: Path) -> None:
    found = branch(kind, tmp_path)
    for level in found["levels"]:
        first, *others = level["cached"]
        whole = (level["prompt"] - 1) // UNIT * UNIT
        assert others == [whole] * len(others), KINDS[kind].architecture
        assert first >= whole - 2 * UNIT
    assert found["same_again"], "KV and states that are found give the same tokens"
    assert found["drawn_with_least"] == 4, "the least quota holds a path of full length"
    assert 0 <= found["planned_bytes"] - found["least_bytes"] <= 0.1 * found["planned_bytes"]


@LONG
def test_without_a_unit_for_prefixes_a_branch_computes_all_of_it_again(tmp_path: Path) -> None:
    """What vLLM does by default: a block holds as many tokens as a state is large."""
    found = branch("qwen35_generator", tmp_path, prefix_match_unit=None)
    assert [level["cached"] for level in found["levels"]] == [[0] * 4] * 3
