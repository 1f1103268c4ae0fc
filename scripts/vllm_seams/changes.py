"""Compares a vLLM with the one that FlashEdge was checked with, and says what moved."""

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from scripts.vllm_seams.record import Record
from scripts.vllm_seams.seam import Seam
from scripts.vllm_seams.source import Definition, VllmSource, digest_tree
from scripts.vllm_seams.table import SEAMS


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


def list_changed_members(name: str, old: VllmSource, new: VllmSource) -> str:
    """Say which members of a class were changed, added or removed. Empty for anything else."""
    before, after = (_digest_members(name, source) for source in (old, new))
    both = before.keys() & after.keys()
    kinds = {
        "changed": [key for key in both if before[key] != after[key]],
        "new": after.keys() - before.keys(),
        "gone": before.keys() - after.keys(),
    }
    return "; ".join(f"{kind} {', '.join(sorted(keys))}" for kind, keys in kinds.items() if keys)


def diff_source(name: str, old: VllmSource, new: VllmSource) -> list[str]:
    """The differences of one name's source as lines."""
    before, after = (_get_text(name, source).splitlines() for source in (old, new))
    lines = difflib.unified_diff(before, after, name, name, n=2, lineterm="")
    return [f"{line}\n" for line in (*lines, "")]


def _digest_members(name: str, source: VllmSource) -> dict[str, str]:
    located = source.locate(name)
    if located is None or not isinstance(located.tree, ast.ClassDef):
        return {}
    return {key: digest_tree(tree) for key, tree in source.list_members(located.tree).items()}


def _get_text(name: str, source: VllmSource) -> str:
    """The source text of a definition. Empty if there is none, or for a module."""
    located = source.locate(name)
    if located is None or isinstance(located.tree, ast.Module):
        return ""
    file = source.find_file(located.modules[-1])
    assert file is not None, "it was located there"
    text = (source.root / file).read_text(encoding="utf-8")
    return ast.get_source_segment(text, located.tree, padded=True) or ""
