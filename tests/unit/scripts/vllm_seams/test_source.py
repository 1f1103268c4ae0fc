"""Reading definitions from source files, on a small package in place of vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.vllm_seams.seam import Use
from scripts.vllm_seams.source import Definition, VllmSource

ENGINE = '''
from typing import TYPE_CHECKING, NamedTuple, overload
if TYPE_CHECKING:
    LIMIT: int = 3
Pair = tuple[int, str]

class Rows(NamedTuple):
    ids: list[int]
    ranks: list[int] | None = None

class Base: ...

class Engine(Base, kind="a"):
    """An engine."""
    speed: float = 1.0

    def __init__(self, size: int, *, name="x"):
        # the running ones
        self.running: list[int] = []
        if size:
            self.waiting = [size]

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs."""
        return not self.running

    @is_idle.setter
    def is_idle(self, value): ...

    @overload
    def step(self, count: int) -> None: ...
    @overload
    def step(self, count: str) -> None: ...
    async def step(self, count, /, *rest, last=None):
        return count
'''
FILES = {
    "vllm/__init__.py": "from .core import Engine as Machine",
    "vllm/core/__init__.py": "from . import engine\nfrom .engine import Engine, Rows",
    "vllm/core/engine.py": ENGINE,
}
FILE = "vllm/core/engine.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    return tmp_path


def find(folder: Path, name: str, use: Use = Use.CALLED) -> Definition:
    found = VllmSource(folder).find(f"vllm{name}", use)
    assert found is not None, name
    return found


@pytest.mark.parametrize(
    ("name", "use", "signature"),
    [
        ("Engine.__init__", Use.CALLED, "(self, size, *, name='x')"),
        ("Engine.step", Use.CALLED, "async (self, count, /, *rest, last=None)"),
        ("Engine.is_idle", Use.ACCESSED, "@property (self)"),
        ("Engine.running", Use.ACCESSED, "list[int]"),
        ("Engine.waiting", Use.ACCESSED, "assigned"),
        ("Engine.speed", Use.ACCESSED, "float"),
        ("Engine", Use.SUBCLASSED, "class(Base, kind='a')"),
        ("Rows", Use.EXACT, "class(NamedTuple): ids, ranks="),
        ("Pair", Use.EXACT, "tuple[int, str]"),
        ("LIMIT", Use.ACCESSED, "int"),
    ],
)
def test_a_signature_is_what_code_outside_sees(
    folder: Path, name: str, use: Use, signature: str
) -> None:
    assert find(folder, f".core.engine:{name}", use).signature == signature


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("nowhere:Engine", Use.CALLED),
        ("core.engine:Motor", Use.CALLED),
        ("core.engine:Engine.stop", Use.CALLED),
        ("core.engine:LIMIT.x", Use.CALLED),
        ("core:motor", Use.NAMED),
    ],
)
def test_a_name_that_is_not_there_is_not_found(folder: Path, name: str, use: Use) -> None:
    assert VllmSource(folder).find(f"vllm.{name}", use) is None


def test_imported_names_and_modules_are_followed_to_their_definition(folder: Path) -> None:
    files = ("vllm/__init__.py", "vllm/core/__init__.py", FILE)
    assert find(folder, ":Machine.step").files == files
    assert find(folder, ".core:engine", Use.NAMED).signature == "module"


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ("        # the running ones\n", "", True),
        ('    """An engine."""\n', "", True),
        ('"""Whether nothing runs."""', "'Whether it is idle.'", True),
        ("*, name=", "*,\n  name =", True),
        ('kind="a"', "kind='a'", True),
        ("return not self.running", "return not self.waiting", False),
        ("size: int", "size: float", False),
        ("speed: float = 1.0", "speed: float = 2.0", False),
    ],
)
def test_only_code_changes_the_digest(folder: Path, old: str, new: str, is_same: bool) -> None:
    before = find(folder, ".core.engine:Engine").digest
    assert ENGINE.count(old) == 1
    (folder / FILE).write_text(ENGINE.replace(old, new), encoding="utf-8")
    assert (find(folder, ".core.engine:Engine").digest == before) is is_same
