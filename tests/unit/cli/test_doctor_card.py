"""What `doctor` says of the CUDA build, on machines where it can't start and where it can."""

from collections.abc import Callable
from typing import Any

import pytest

from flashedge.cli.doctor import BAD, GOOD, Check
from flashedge.cli.doctor import command as doctor
from flashedge.config import load_config
from flashedge.engine import platform
from flashedge.engine.card_needs import DriverReport, UnmetNeed
from flashedge.engine.vllm.card_check import CardVerdict
from flashedge.profiler import ProfileError, gpu
from tests.support.cli_rig import CARD, Patch, failing

WORKS = [CardVerdict(name=name, error=None) for name in ("cuda", "kernels", "triton")]
REASON = "RuntimeError: CUDA driver initialization failed"


@pytest.fixture(autouse=True)
def cuda_build(monkeypatch: Patch) -> None:
    """The CUDA build is installed, and a C compiler with the headers of Python."""
    monkeypatch.setattr(platform, "find_vllm", lambda: ("vllm", "0.32.0"))
    monkeypatch.setattr(doctor, "find_vllm", lambda: ("vllm", "0.32.0"))
    monkeypatch.setattr(doctor, "check_compiler", lambda: None)


def check(*verdicts: CardVerdict, driver: str = "580.95") -> dict[str, Check]:
    found = DriverReport(driver=driver, names=("RTX 4090",))
    checks = doctor.check_cuda_build(lambda: found, lambda: list(verdicts))
    return {c.name: c for c in checks}


def test_a_card_that_works_is_green_and_one_that_does_not_is_named() -> None:
    checks = check(*WORKS)
    assert list(checks) == ["driver", "compiler", "cuda", "kernels", "triton"]
    assert {c.verdict for c in checks.values()} == {GOOD}
    assert checks["driver"].detail == (
        "card: RTX 4090, driver 580.95; CUDA 13 needs driver 580 or later"
    )
    checks = check(CardVerdict(name="cuda", error=REASON, hint="reboot"))
    assert checks["cuda"] == Check(name="cuda", verdict=BAD, detail=REASON, hint="reboot")


def test_a_driver_that_is_old_or_does_not_answer_ends_the_checks() -> None:
    (found,) = doctor.check_cuda_build(lambda: "version mismatch", lambda: WORKS)
    assert found.verdict == BAD
    assert found.detail == "the NVIDIA driver does not answer: version mismatch"
    (old,) = check(*WORKS, driver="570.86").values()
    assert (old.name, old.verdict) == ("driver", BAD)
    assert "CUDA 13 needs 580 or later" in old.detail
    assert "ubuntu-drivers install" in str(old.hint)


def test_a_missing_compiler_ends_the_checks(monkeypatch: Patch) -> None:
    need = UnmetNeed(what="there is no C compiler", hints=("apt install it", "or do without"))
    monkeypatch.setattr(doctor, "check_compiler", lambda: need)
    checks = check(*WORKS)
    assert list(checks) == ["driver", "compiler"]
    compiler = checks["compiler"]
    assert (compiler.verdict, compiler.hint) == (BAD, "apt install it; or do without")


def list_checks(monkeypatch: Patch, read_cards: Callable[..., Any]) -> dict[str, Check]:
    monkeypatch.setattr(gpu, "read_cards", read_cards)
    monkeypatch.setattr(doctor, "load_config", lambda: load_config({}, {"FLASHEDGE_PORT": "x"}))
    cuda = Check(name="cuda", verdict=BAD, detail="")
    monkeypatch.setattr(doctor, "check_cuda_build", lambda: iter([cuda]))
    return {c.name: c for c in doctor.run_checks()}


def test_the_cuda_build_without_a_card_is_wrong(monkeypatch: Patch) -> None:
    checks = list_checks(monkeypatch, failing(ProfileError("no card (Driver Not Loaded)")))
    assert checks["gpu"].verdict == BAD
    for said in ("Driver Not Loaded", "the installed vLLM is the CUDA build"):
        assert said in checks["gpu"].detail
    assert "setup.sh --cpu" in str(checks["gpu"].hint)
    assert "cuda" not in checks


def test_doctor_runs_the_checks_of_the_cuda_build(monkeypatch: Patch) -> None:
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: "2.13.0")
    checks = list_checks(monkeypatch, lambda *_: (CARD,))
    assert (checks["gpu"].verdict, checks["cuda"].verdict) == (GOOD, BAD)
