"""The trial of an installed CUDA build, on builds that do not work."""

import json
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import vllm

from flashedge.engine.vllm import card_check
from flashedge.engine.vllm.card_check import CardVerdict, check_build, check_installed_build
from tests.support.fake_programs import fake

PARTS = {"cuda": "multiply_on_card", "kernels": "load_kernels", "triton": "build_launcher"}
"""By their names the functions that try them."""
GOOD = [CardVerdict(name=name, error=None) for name in PARTS]
OLD = "The NVIDIA driver on your system is too old (found version 12020)."
UNKNOWN = "CUDA unknown error - this may be due to an incorrectly set up environment"
HIDDEN = "CUDA_VISIBLE_DEVICES is '' and hides every card"


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A card on which every part works. Tests break one."""
    for function in PARTS.values():
        monkeypatch.setattr(card_check, function, lambda: None)
    return monkeypatch


@pytest.mark.skipif(torch.version.cuda is not None, reason="asks the CPU build of torch")
def test_the_cpu_build_of_torch_says_why_it_has_no_card() -> None:
    (verdict,) = check_build()
    fault = "AssertionError: Torch not compiled with CUDA enabled"
    assert (verdict.name, verdict.error) == ("cuda", fault)
    assert "setup.sh --cuda" in str(verdict.hint)


@pytest.mark.parametrize(
    ("part", "reason", "hint"),
    [
        ("cuda", OLD, "ubuntu-drivers install"),
        ("cuda", "No CUDA GPUs are available", HIDDEN),
        ("cuda", UNKNOWN, "reboot"),
        ("cuda", "CUDA out of memory. Tried to allocate", "other programs fill the card"),
        ("cuda", "no kernel image is available for execution", "setup.sh --cuda again"),
        ("kernels", "libcudart.so.13: cannot open shared object file", "setup.sh --cuda again"),
        ("triton", "Failed to find C compiler.", "build-essential"),
    ],
)
def test_the_first_part_that_fails_ends_the_check_with_what_to_do(
    works: pytest.MonkeyPatch, part: str, reason: str, hint: str
) -> None:
    assert list(check_build()) == GOOD
    works.setenv("CUDA_VISIBLE_DEVICES", "")
    works.setattr(card_check, PARTS[part], Mock(side_effect=RuntimeError(reason)))
    *good, verdict = check_build()
    assert good == GOOD[: len(good)]
    assert (verdict.name, verdict.error) == (part, f"RuntimeError: {reason}")
    assert hint in str(verdict.hint)


def test_the_kernels_are_found_in_both_builds(tmp_path: Path) -> None:
    assert "vllm._C" in card_check.list_kernels(Path(vllm.__file__).parent)
    with pytest.raises(ImportError, match="no compiled kernels in"):
        card_check.list_kernels(tmp_path)
    for name in ("_C_stable_libtorch.abi3.so", "_moe_C_stable_libtorch.abi3.so"):
        (tmp_path / name).touch()
    assert card_check.list_kernels(tmp_path) == ["vllm._C_stable_libtorch"]


@pytest.mark.parametrize("arguments", [["--json"], []])
def test_the_process_prints_its_verdicts(
    works: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    works.setattr(sys, "argv", ["card_check", *arguments])
    assert card_check.main() == 0
    works.setattr(card_check, "build_launcher", Mock(side_effect=RuntimeError("no ptxas")))
    assert card_check.main() == 1
    *_, first, last = capsys.readouterr().out.splitlines()
    if arguments:
        assert [v["error"] for v in json.loads(last)] == [None, None, "RuntimeError: no ptxas"]
    else:
        assert first == "setup: triton does not work here: RuntimeError: no ptxas"


def test_a_process_gives_the_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = json.dumps([{"name": "cuda", "error": "too old", "hint": "renew it"}])
    fake(tmp_path, "python", f"echo noise\necho '{verdicts}'\nexit 1")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert check_installed_build() == [CardVerdict(name="cuda", error="too old", hint="renew it")]
    fake(tmp_path, "python", "echo 'Illegal instruction' >&2\nexit 132")
    (verdict,) = check_installed_build()
    assert verdict.error == "the check ended with exit code 132: Illegal instruction"
