"""What the CUDA build needs of a machine. The tests of setup.sh show headers, MIG, dead drivers."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flashedge.engine import card_needs
from flashedge.engine.card_needs import DriverReport, check_card, check_compiler, query_driver
from tests.support.fake_programs import fake, fake_nvidia_smi
from tests.support.paths import ROOT

CUDA = 13
CARD = "NVIDIA GeForce RTX 4090"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    return tmp_path


def test_the_list_for_cuda_says_which_cuda_it_installs() -> None:
    assert card_needs.read_cuda_major(ROOT / "requirements" / "cuda.txt") in card_needs.MIN_DRIVERS
    with pytest.raises(ValueError, match="pins no nvidia-cuda-runtime"):
        card_needs.read_cuda_major(ROOT / "requirements" / "cpu.txt")


def test_good_cards_are_described(programs: Path) -> None:
    assert query_driver() is None, "there is no nvidia-smi"
    fake_nvidia_smi(programs)
    found = query_driver()
    assert found == DriverReport(driver="580.95.05", names=(CARD,), capability=(8, 9))
    assert list(check_card(found, CUDA)) == []
    assert list(check_card(replace(found, driver="535.183.01"), 12)) == []
    assert list(card_needs.describe_cards(found)) == [f"card: {CARD}, driver 580.95.05"]
    fake_nvidia_smi(programs, names=("A100", "A100"), mig_devices=2)
    listed = (
        "GPU 0: A100 (UUID: GPU-0)\nGPU 1: A100 (UUID: GPU-1)\n  MIG 1g Device 0: (UUID: MIG-0)"
    )
    body = (programs / "nvidia-smi").read_text().removeprefix("#!/bin/sh\n")
    fake(programs, "nvidia-smi", f"if [ $1 = -L ]; then printf '{listed}'; exit; fi\n{body}")
    (need,) = check_card(query_driver(), CUDA)
    assert need.what == "MIG is on for A100, but it has no MIG device"


OLD_SMI = """case "$*" in
  *driver_version,name*) echo '470.256.02, NVIDIA GeForce GTX 1080 Ti' ;;
  *) echo 'Field "compute_cap" is not a valid field to query.'; exit 2 ;;
esac"""
OLD_CARD = {"names": ("NVIDIA GeForce GTX 1080 Ti",), "capability": "6.1"}


@pytest.mark.parametrize(
    ("smi", "problem"),
    [
        (OLD_SMI, "the NVIDIA driver is 470.256.02, but CUDA 13 needs 580 or later"),
        ({"driver": "579.99"}, "the NVIDIA driver is 579.99, but CUDA 13 needs 580 or later"),
        (OLD_CARD, "NVIDIA GeForce GTX 1080 Ti has compute capability 6.1; CUDA 13 needs 7.5"),
    ],
    ids=["an old smi", "an old driver", "an old card"],
)
def test_what_is_wrong_with_a_driver_or_card_is_named(
    programs: Path, smi: str | dict[str, Any], problem: str
) -> None:
    if isinstance(smi, str):
        fake(programs, "nvidia-smi", smi)
    else:
        fake_nvidia_smi(programs, **smi)
    (need,) = check_card(query_driver(), CUDA)
    assert need.what.startswith(problem)


def test_a_compiler_that_cant_be_used(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton does not look for one of the name cc."""
    fake(programs, "cc", "exit 0")
    assert check_compiler().hints[0] == f"export CC={programs}/cc, or:"
    monkeypatch.setenv("CC", f"{programs}/cc")
    assert check_compiler() is None
    monkeypatch.setenv("CC", f"{programs}/gone")
    assert "the C compiler can't be run" in check_compiler().what
    monkeypatch.delenv("CC")
    fake(programs, "gcc", "echo 'x.h:12: fatal error: stdio.h: No such file' >&2; exit 1")
    problem = f"{programs}/gcc can't compile a Python extension: x.h:12: fatal error"
    assert problem in check_compiler().what
    fake(programs, "gcc", f'echo "$@" >{programs}/asked')
    assert check_compiler() is None
    asked = (programs / "asked").read_text().split()
    assert {"-shared", "-fPIC"} <= set(asked), "as Triton asks it"
    include = next(part for part in asked if part.startswith("-I")).removeprefix("-I")
    assert Path(include).name == "python{}.{}".format(*sys.version_info)
