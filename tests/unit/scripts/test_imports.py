"""Every script still finds the names that it imports from the product."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.paths import ROOT

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

IMPORT_ALL = """
import importlib, pkgutil, scripts
from tests.support.paths import ROOT
for module in pkgutil.walk_packages(scripts.__path__, "scripts."):
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        print(f"{module.name}: {error}")
"""


def test_every_script_imports() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
