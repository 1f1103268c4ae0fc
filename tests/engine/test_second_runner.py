"""A search on vLLM's second model runner, asynchronous, in Triton's interpreter.

`python -m tests.support.small_searches` runs more of them.
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flashedge.runtime.drive.engines import Engines
from tests.support.paths import ROOT
from tests.support.runtime_rig import driver_of
from tests.support.small_searches import describe_node, list_specs

pytest.importorskip("triton", reason="Triton has no wheel for this machine")


@pytest.mark.parametrize("options", [[], ["--drafts"]])
async def test_a_search_finds_the_same_tree(
    engines: Engines, tmp_path: Path, options: list[str]
) -> None:
    """With drafted steps, and with tokens drafted on the device. The first runner's engine here
    schedules one step after the other."""
    output = tmp_path / "trees.json"
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "tests.support.small_searches", str(output), "--second", *options],
        cwd=ROOT,
        env={
            **os.environ,
            "TRITON_INTERPRET": "1",
            "PYTHONPATH": str(ROOT / "tests" / "support" / "interpreted"),
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(output.read_text())
    assert found["drafts"]["kept_tokens"] > 0
    assert (found["token_drafts"].get("accepted_tokens", 0) > 0) == bool(options)
    for name, spec in list_specs(1, ["beam"]).items():
        tree = (await driver_of(engines, spec, lambda event: None).run()).tree
        expected = json.loads(json.dumps([describe_node(node) for node in tree.nodes.values()]))
        assert found["trees"][name] == expected
