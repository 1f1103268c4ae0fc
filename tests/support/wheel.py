"""The package as users of the wheel have it: built from this checkout, in its own environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

SOURCES = ("pyproject.toml", "README.md", "models.toml", "flashedge", "tui", "profiler")


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A wheel and the environment that it is installed in."""

    wheel: Path
    home: Path
    """FLASHEDGE_HOME of the commands."""
    folder: Path
    """An empty folder that they run in."""
    python: Path
    site_packages: Path

    def list_files(self) -> list[str]:
        """The paths in the wheel."""
        return zipfile.ZipFile(self.wheel).namelist()

    def run(self, *command: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a `flashedge` command in the empty folder."""
        left_out = ("PYTHON", "FLASHEDGE_")
        env = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
        env |= {"FLASHEDGE_HOME": str(self.home), "FLASHEDGE_PORT": "0"}
        return _run([self.python.with_name("flashedge"), *command], self.folder, env, timeout_s)


def install_wheel(folder: Path) -> Installed:
    """Build the wheel and install it into a new environment, without a package index.

    It is built from a copy, because setuptools leaves a folder `build` that it later takes stale
    files from. Dependencies are those of this Python, whose own FlashEdge is not among them.
    """
    copy = folder / "source"
    copy.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("*.pyc")
            )
        else:
            shutil.copy(ROOT / name, copy / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-index"]
    _check([*pip, "wheel", *offline, "--no-build-isolation", "-w", folder / "wheel", "."], copy)
    (wheel,) = (folder / "wheel").iterdir()
    place = folder / "venv"
    venv.create(place, with_pip=False, symlinks=True)
    python = place / "bin" / "python"
    _check([*pip, "--python", python, "install", *offline, wheel], folder)
    (site_packages,) = place.glob("lib/python3.*/site-packages")
    _share_dependencies(Path(sysconfig.get_path("purelib")), site_packages)
    for name in ("home", "empty"):
        (folder / name).mkdir()
    return Installed(
        wheel=wheel,
        home=folder / "home",
        folder=folder / "empty",
        python=python,
        site_packages=site_packages,
    )


def _share_dependencies(source: Path, target: Path) -> None:
    """Link everything that is installed in `source` but FlashEdge, which is there in place."""
    for entry in source.iterdir():
        link = target / entry.name
        if "flashedge" not in entry.name and not link.exists() and entry.name != "__pycache__":
            link.symlink_to(entry)


def _check(command: Sequence[str | Path], folder: Path) -> None:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = _run(command, folder, env, 300)
    assert done.returncode == 0, done.stdout + done.stderr


def _run(
    command: Sequence[str | Path], folder: Path, env: dict[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
    )
