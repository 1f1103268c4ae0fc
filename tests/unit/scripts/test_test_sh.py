"""Which tests scripts/test.sh runs. Every program that it calls is replaced."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.fake_programs import fake
from tests.support.paths import ROOT

# Each call of pytest writes its options. It exits with the code that the environment gives for the
# tests of the lab or for the others.
PYTHON = """
[ "$2" = pytest ] || exit 0
echo "$*" >>"$CALLS"
case "$*" in *"-m lab"*) exit "${LAB:-0}" ;; *) exit "${PRODUCT:-0}" ;; esac
"""
PYTEST = "-m pytest -q -n 2 --dist loadgroup -m"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    top = tmp_path / "check out"
    (top / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "test.sh", top / "scripts")
    for name in ("setup.sh", "clients.sh"):
        fake(top / "scripts", name, "exit 0")
    (top / ".venv").mkdir()
    fake(top / ".venv" / "bin", "python", PYTHON)
    fake(top / ".venv" / "bin", "lint-imports", "exit 0")
    return top


def run(checkout: Path, *options: str, **environ: str) -> tuple[int, list[str]]:
    """The exit code, and the calls of pytest."""
    calls = checkout / "calls"
    calls.write_text("")
    kept = {k: v for k, v in os.environ.items() if not k.startswith("FLASHEDGE_")}
    done = subprocess.run(
        ["bash", checkout / "scripts" / "test.sh", *options],
        env={**kept, "CALLS": str(calls), **environ},
        capture_output=True,
        timeout=60,
    )
    return done.returncode, calls.read_text().splitlines()


def test_the_tests_of_the_lab_run_after_the_others(checkout: Path) -> None:
    assert run(checkout) == (0, [f"{PYTEST} not lab and not long", f"{PYTEST} lab and not long"])
    assert run(checkout, "--long") == (0, [f"{PYTEST} not lab", f"{PYTEST} lab"])
    fast = "and not long and not engine and not gpu"
    assert run(checkout, FLASHEDGE_FAST="1")[1] == [
        f"{PYTEST} {m} {fast}" for m in ("not lab", "lab")
    ]


def test_they_can_be_left_out(checkout: Path) -> None:
    assert run(checkout, FLASHEDGE_LAB="0") == (0, [f"{PYTEST} not lab and not long"])


@pytest.mark.parametrize("failing", ["PRODUCT", "LAB"])
def test_a_failure_of_either_fails_and_both_run(checkout: Path, failing: str) -> None:
    code, calls = run(checkout, **{failing: "1"})
    assert code == 1
    assert len(calls) == 2


def test_options_may_select_tests_of_one_kind_but_not_none(checkout: Path) -> None:
    options = ("-k", "beam")
    assert run(checkout, *options, LAB="5")[0] == 0
    assert run(checkout, *options, PRODUCT="5")[0] == 0
    assert run(checkout, *options, LAB="5", PRODUCT="5")[0] == 1
    assert run(checkout, *options, LAB="5", PRODUCT="1")[0] == 1
    assert all(call.endswith("not long -k beam") for call in run(checkout, *options)[1])


def test_marks_of_the_user_s_own_select_from_all_tests_at_once(checkout: Path) -> None:
    assert run(checkout, "-m", "engine")[1] == [f"{PYTEST} not lab and not long -m engine"]
