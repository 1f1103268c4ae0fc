"""The commands of the lab, with a checkout and without: the package works without them."""

import subprocess
import sys
from pathlib import Path

import pytest

from flashedge.cli import lab
from tests.support.cli_rig import Cli, Patch
from tests.support.paths import ROOT


def run_elsewhere(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run Python in `folder`, whose files come before the checkout's on Python's path."""
    start = f"import sys; sys.path[:] = [{str(folder)!r}, *sys.path[1:], {str(ROOT)!r}]\n"
    command = [sys.executable, "-c", start + code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize(
    "command", ["bench", "bench flashtts", "bench load --rate 2", "simulate -n 4", "models eval"]
)
def test_without_a_checkout_each_says_that_it_needs_one(
    cli: Cli, command: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(lab, "CHECKOUT", tmp_path)
    name = "models eval" if "models" in command else command.split()[0]
    said = f"`flashedge {name}` measures FlashEdge, and only a checkout"
    done = cli.ends(2, said, *command.split())
    assert done.out == ""
    assert f"use .venv/bin/flashedge {name}" in done.err
    assert "Needs a checkout" in cli(*name.split(), "--help").out


@pytest.mark.parametrize("name", lab.COMMANDS)
def test_a_command_says_the_same_of_itself_with_and_without_a_checkout(cli: Cli, name: str) -> None:
    command = ("models", name) if name == "eval" else (name,)
    assert lab.COMMANDS[name][1] in " ".join(cli(*command, "--help").out.split())


def test_other_commands_import_nothing_of_the_lab(tmp_path: Path) -> None:
    code = (
        "from flashedge.cli.main import main\n"
        "main({})\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'scripts'])\n"
    )
    for command in (["config", "path"], ["solve", "--help"]):
        done = run_elsewhere(tmp_path, code.format(command))
        assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr
    done = run_elsewhere(tmp_path, code.format(["bench", "--help"]))
    assert "'scripts.lab.cli.load'" in done.stdout.splitlines()[-1]


def test_a_package_of_that_name_elsewhere_is_not_taken_for_the_lab(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "__init__.py").write_text("raise SystemExit('not the lab')")
    done = run_elsewhere(tmp_path, "from flashedge.cli.main import main; main(['bench', '--help'])")
    assert "flashtts" in done.stdout, done.stderr
