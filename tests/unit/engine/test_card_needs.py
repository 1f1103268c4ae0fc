"""What the CUDA build needs of a machine, found out on machines that lack it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flashedge.engine import card_needs
from flashedge.engine.card_needs import (
    DriverReport,
    UnmetNeed,
    check_card,
    check_compiler,
    query_driver,
)
from tests.support.fake_programs import NO_DRIVER, NO_HEADERS, fake, fake_nvidia_smi
from tests.support.paths import ROOT

CUDA = 13


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    return tmp_path


def find(programs: Path) -> list[str]:
    found = query_driver()
    assert found is not None
    return [need.what for need in check_card(found, CUDA)]


def test_the_list_for_cuda_says_which_cuda_it_installs() -> None:
    assert card_needs.read_cuda_major(ROOT / "requirements" / "cuda.txt") in card_needs.MIN_DRIVERS
    with pytest.raises(ValueError, match="pins no nvidia-cuda-runtime"):
        card_needs.read_cuda_major(ROOT / "requirements" / "cpu.txt")


def test_a_good_card_is_described(programs: Path) -> None:
    fake_nvidia_smi(programs)
    found = query_driver()
    assert isinstance(found, DriverReport)
    assert found == DriverReport(
        driver="580.95.05", names=("NVIDIA GeForce RTX 4090",), capability=(8, 9)
    )
    assert list(check_card(found, CUDA)) == []
    assert list(check_card(replace(found, driver="535.183.01"), 12)) == []
    assert list(card_needs.describe_cards(found)) == [
        "card: NVIDIA GeForce RTX 4090, driver 580.95.05"
    ]


def test_no_nvidia_smi_is_no_answer(programs: Path) -> None:
    assert query_driver() is None


OLD_SMI = """case "$*" in
  *driver_version,name*) echo '470.256.02, NVIDIA GeForce GTX 1080 Ti' ;;
  *) echo 'Field "compute_cap" is not a valid field to query.'; exit 2 ;;
esac"""


@pytest.mark.parametrize(
    ("body", "answers", "problem"),
    [
        (OLD_SMI, {}, "the NVIDIA driver is 470.256.02, but CUDA 13 needs 580 or later"),
        (None, {"driver": "579.99"}, "the NVIDIA driver is 579.99, but CUDA 13 needs 580 or later"),
        (
            f'echo "{NO_DRIVER}"; exit 9',
            {},
            "the NVIDIA driver does not answer: NVIDIA-SMI has failed",
        ),
        (
            None,
            {"names": ("NVIDIA GeForce GTX 1080 Ti",), "capability": "6.1"},
            "NVIDIA GeForce GTX 1080 Ti has compute capability 6.1; CUDA 13 needs 7.5",
        ),
        (
            None,
            {"names": ("A100",), "mig_devices": 0},
            "MIG is on for A100, but it has no MIG device",
        ),
    ],
    ids=["an old smi", "an old driver", "no answer", "an old card", "MIG without a device"],
)
def test_what_is_wrong_with_a_driver_or_card_is_named(
    programs: Path, body: str | None, answers: dict[str, Any], problem: str
) -> None:
    if body is None:
        fake_nvidia_smi(programs, **answers)
    else:
        fake(programs, "nvidia-smi", body)
    (what,) = find(programs)
    assert what.startswith(problem)


def test_two_cards_and_mig_are_mentioned(programs: Path) -> None:
    fake_nvidia_smi(programs, names=("A100", "A100"), mig_devices=2)
    found = query_driver()
    assert isinstance(found, DriverReport)
    assert list(check_card(found, CUDA)) == []
    _, two, mig = card_needs.describe_cards(found)
    assert "2 cards: FlashEdge uses the first" in two
    assert "set kv_bytes yourself" in mig


def find_need() -> UnmetNeed:
    need = check_compiler()
    assert need is not None
    return need


def test_no_compiler(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need = find_need()
    assert "there is no C compiler" in need.what
    assert "apt install build-essential" in need.hints[0]
    assert "dnf install gcc" in need.hints[0]
    monkeypatch.setenv("CC", str(programs / "gone"))
    need = find_need()
    assert "the C compiler can't be run" in need.what


def test_triton_does_not_look_for_cc(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(programs, "cc", "exit 0")
    need = find_need()
    assert need.hints[0] == f"export CC={programs}/cc, or:"
    monkeypatch.setenv("CC", f"{programs}/cc")
    assert check_compiler() is None


def test_no_headers(programs: Path) -> None:
    fake(programs, "gcc", NO_HEADERS)
    need = find_need()
    version = "{}.{}".format(*sys.version_info)
    assert f"the headers of {sys.executable} are missing (Python.h in " in need.what
    assert f"apt install python{version}-dev" in need.hints[0]
    assert f"dnf install python{version}-devel" in need.hints[0]


def test_a_compiler_without_a_c_library(programs: Path) -> None:
    fake(programs, "gcc", "echo 'x.h:12: fatal error: stdio.h: No such file' >&2; exit 1")
    need = find_need()
    assert f"{programs}/gcc can't compile a Python extension: x.h:12: fatal error" in need.what


def test_the_compiler_is_given_what_triton_gives_it(programs: Path) -> None:
    fake(programs, "gcc", f'echo "$@" >{programs}/asked')
    assert check_compiler() is None
    asked = (programs / "asked").read_text().split()
    assert {"-shared", "-fPIC"} <= set(asked)
    include = next(part for part in asked if part.startswith("-I")).removeprefix("-I")
    assert Path(include).name == "python{}.{}".format(*sys.version_info)
