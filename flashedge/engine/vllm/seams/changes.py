"""Compares a vLLM with the one that FlashEdge was checked with, and says what moved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flashedge.engine.vllm.seams.record import Record
from flashedge.engine.vllm.seams.seam import Seam
from flashedge.engine.vllm.seams.source import Definition, VllmSource
from flashedge.engine.vllm.seams.table import SEAMS


@dataclass(frozen=True, slots=True, kw_only=True)
class SeamChange:
    """A name of vLLM that is not what it was."""

    name: str
    seam: Seam
    what: str
    """What is different, as a sentence without its end."""
    is_breaking: bool
    """Whether the name is gone or has another signature. Else only its body changed."""

    def __str__(self) -> str:
        files = ", ".join(self.seam.used_by)
        return f"{self.what}. FlashEdge {self.seam.use.value} it ({files}): {self.seam.reason}"


def find_changes(source: VllmSource, record: Record) -> list[SeamChange]:
    """List the names of the table that are not as recorded, in the table's order.

    Files whose bytes are the same are not parsed.
    """
    same = {path for path, known in record.files.items() if source.hash_file(path) == known}
    found: list[SeamChange] = []
    for seam in SEAMS:
        for name in seam.list_full_names():
            old = record.definitions[name]
            if not same.issuperset(old.files):
                found += _compare(name, seam, old, source.find(name, seam.use))
    return found


def _compare(
    name: str, seam: Seam, old: Definition, new: Definition | None
) -> Iterator[SeamChange]:
    """Yield at most one change."""
    if new is None:
        what = f"{name} is gone (it was {old.signature})"
    elif new.signature != old.signature:
        what = f"{name} was {old.signature} and is {new.signature}"
    elif new.digest != old.digest:
        yield SeamChange(name=name, seam=seam, what=f"{name} changed inside", is_breaking=False)
        return
    else:
        return
    yield SeamChange(name=name, seam=seam, what=what, is_breaking=True)
