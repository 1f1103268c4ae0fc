"""The wheel, built from this checkout, installed into an environment of its own and used from an
empty folder."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.xdist_group("wheel")  # one process builds it

PROBLEM = "Dan has 24 nuts. Day 1: wins 20. How many nuts has Dan after day 1?"
STRATEGY = """
class FirstOnly:
    def execute(self, tree, paths, width):
        return {paths[0]: width}

    def update_certainindex(self, tree, finished):
        return None
"""
ENTRY_POINT = "[flashedge.strategies]\nfirst_only = my_way:FirstOnly\n"
PAIR = """
[pairs.mine]
description = "a pair of the user's own"
generator = "bundled"
verifier = "bundled"
memory = { generator_kv_bytes = "256MiB", verifier_kv_bytes = "256MiB" }
max_step_tokens = 192
max_path_tokens = 768
"""

SOURCES = ("pyproject.toml", "README.md", "models.toml", "flashedge", "tui", "profiler")


class Installed(NamedTuple):
    """A wheel and the environment that it is installed in."""

    wheel: Path
    home: Path
    """FLASHEDGE_HOME of the commands."""
    folder: Path
    """An empty folder that they run in."""
    python: Path
    site_packages: Path

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a `flashedge` command in the empty folder."""
        own = {"FLASHEDGE_HOME": str(self.home), "FLASHEDGE_PORT": "0"}
        return _run([self.python.with_name("flashedge"), *command], self.folder, **own)


def install_wheel(folder: Path) -> Installed:
    """Build the wheel and install it into a new environment, without a package index.

    It is built from a copy, because setuptools leaves a folder `build` that it later takes stale
    files from. Dependencies are those of this Python, whose own FlashEdge is not among them.
    """
    copy = folder / "source"
    copy.mkdir()
    ignore = shutil.ignore_patterns("*.pyc")
    for source in (ROOT / name for name in SOURCES):
        if source.is_dir():
            shutil.copytree(source, copy / source.name, symlinks=True, ignore=ignore)
        else:
            shutil.copy(source, copy)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-index"]
    _check([*pip, "wheel", *offline, "--no-build-isolation", "-w", folder / "wheel", "."], copy)
    (wheel,) = (folder / "wheel").iterdir()
    place = folder / "venv"
    venv.create(place, with_pip=False, symlinks=True)
    python = place / "bin" / "python"
    _check([*pip, "--python", python, "install", *offline, wheel], folder)
    (site_packages,) = place.glob("lib/python3.*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        link = site_packages / entry.name
        if "flashedge" not in entry.name and not link.exists() and entry.name != "__pycache__":
            link.symlink_to(entry)
    for name in ("home", "empty"):
        (folder / name).mkdir()
    return Installed(wheel, folder / "home", folder / "empty", python, site_packages)


def _check(command: Sequence[str | Path], folder: Path) -> None:
    done = _run(command, folder)
    assert done.returncode == 0, done.stdout + done.stderr


def _run(
    command: Sequence[str | Path], folder: Path, **own: str
) -> subprocess.CompletedProcess[str]:
    """own: variables beside the usual ones, without any of Python's or FlashEdge's."""
    left_out = ("PYTHON", "FLASHEDGE_")
    env = {k: v for k, v in os.environ.items() if not k.startswith(left_out)} | own
    options: Any = {"cwd": folder, "env": env, "timeout": 300, "stdin": subprocess.DEVNULL}
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def own_files(installed: Installed) -> None:
    """A strategy that a package of the user's registers, and a pair in the user's models.toml."""
    packages = installed.site_packages
    (packages / "my_way.py").write_text(STRATEGY)
    metadata = packages / "my_way-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-way\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINT)
    config = Path(installed.run("config", "path").stdout.strip()).parent
    config.mkdir(parents=True, exist_ok=True)
    (config / "models.toml").write_text(PAIR)
    (config / "config.toml").write_text('pair = "mine"\n')


def test_the_wheel_holds_the_package_alone(installed: Installed) -> None:
    files = [file.split("/") for file in zipfile.ZipFile(installed.wheel).namelist()]
    assert {top for top, *_ in files if not top.endswith(".dist-info")} == {"flashedge"}
    left_out = {"lab", "benchmark", "evaluation", "bench", "sim", "scripts", "tests"}
    assert not [file for file in files if left_out & {*file}]
    assert ["flashedge", "models.toml"] in files
    styles = {file.name for file in (ROOT / "tui").glob("*.tcss")}
    assert styles
    assert styles == {name for *_, name in files if name.endswith(".tcss")}
    assert ["flashedge", "tui", "app.py"] in files


def test_a_command_of_the_lab_says_that_it_needs_a_checkout(installed: Installed) -> None:
    done = installed.run("bench")
    assert (done.returncode, done.stdout) == (2, "")
    assert "only a checkout of the project has" in done.stderr
    assert "bash scripts/setup.sh" in done.stderr


@pytest.mark.usefixtures("own_files")
def test_the_user_s_own_pair_is_listed(installed: Installed) -> None:
    done = installed.run("models", "show", "mine")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("mine: a pair of the user's own")


@pytest.mark.engine
@pytest.mark.usefixtures("own_files")
def test_it_solves_a_problem_with_the_user_s_own_pair_and_strategy(installed: Installed) -> None:
    try:
        solved = installed.run("solve", PROBLEM, "-q")
        assert solved.returncode == 0, solved.stderr
        assert solved.stdout.strip().isdigit()
        own = installed.run("solve", PROBLEM, "--strategy", "first_only-4", "--json")
        assert own.returncode == 0, own.stderr
        result = json.loads(own.stdout)
        assert (result["strategy"], result["n"], result["pair"]) == ("first_only", 4, "mine")
        assert result["answer"].isdigit()
    finally:
        stopped = installed.run("down")
    assert stopped.returncode == 0, stopped.stderr
