"""The sampling kernel: its logic in Triton's interpreter, and its compilation for real cards."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

pytest.importorskip("triton", reason="Triton has no wheel for this machine")

ADA = "89"


def run_python(*arguments: str, **environment: str) -> None:
    options: Any = {"cwd": ROOT, "env": {**os.environ, **environment}, "capture_output": True}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, **options, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]


def test_the_kernel_draws_the_tokens_of_its_twin() -> None:
    run_python("-m", "tests.support.interpreted_sampling", TRITON_INTERPRET="1")


COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from flashedge.engine.vllm.inside.sampling import fused, naive

signature = {"logits": "*fp32", "rows": "*i64", "stride": "i32", "vocab": "i32"}
constants = {"FIELDS": naive.FIELDS, "BLOCK": fused.BLOCK}
source = ASTSource(
    fn=fused._mark_winner,
    signature={**signature, **dict.fromkeys(constants, "constexpr")},
    constexprs=constants,
)
target = GPUTarget("cuda", int(sys.argv[1]), 32)
ptx = triton.compile(source, target=target, options={"num_warps": fused.WARPS}).asm["ptx"]
assert f"sm_{sys.argv[1]}" in ptx
assert "div.rn.f32" in ptx, "PyTorch rounds its division"
assert "lg2.approx" not in ptx, "its error near 1 is as large as the largest noise's logarithm"
assert ".local" not in ptx, "registers must suffice"

signature = {"rows": "*i64", "fields": "*i64", "slots": "*i64", "last": "*i64", "count": "i32"}
source = ASTSource(fn=fused._pack_slots, signature=signature, constexprs={})
triton.compile(source, target=target, options={"num_warps": 1})
"""


def test_the_kernel_compiles_for_a_card(tmp_path: Path) -> None:
    """Triton's compiler and the assembler in its wheel need no card."""
    run_python("-c", COMPILE, ADA, TRITON_CACHE_DIR=str(tmp_path))
