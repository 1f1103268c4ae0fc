"""Which tests scripts/test.sh runs. Every program that it calls is replaced."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.fake_programs import fake
from tests.support.paths import ROOT

# A call of pytest or mypy writes its options, and exits with the code that the environment gives.
PYTHON = """
case "$2" in
  pytest) echo "$*" >>"$CALLS"; exit "${PYTEST:-0}" ;;
  mypy) exit "${MYPY:-0}" ;;
esac
"""
PYTEST = "-m pytest -q -n 3 --dist loadgroup -m"


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


@pytest.mark.parametrize(
    ("options", "environ", "marks"),
    [
        ((), {}, " not long"),
        (("--long",), {}, ""),
        ((), {"FLASHEDGE_LAB": "0"}, " not long and not lab"),
        ((), {"FLASHEDGE_FAST": "1"}, " not long and not engine and not gpu"),
        (("--long", "-x"), {"FLASHEDGE_LAB": "0"}, " not lab -x"),
        (("-m", "engine"), {}, " not long -m engine"),
    ],
    ids=str,
)
def test_marks_and_options_select_the_tests(
    checkout: Path, options: tuple[str, ...], environ: dict[str, str], marks: str
) -> None:
    code, [call] = run(checkout, *options, **environ)
    assert (code, call.removeprefix(PYTEST).rstrip()) == (0, marks)


@pytest.mark.parametrize("failing", ["PYTEST", "MYPY"])
def test_a_failure_of_either_fails_and_both_run(checkout: Path, failing: str) -> None:
    code, calls = run(checkout, **{failing: "5"})
    assert (code, len(calls)) == (1, 1)
