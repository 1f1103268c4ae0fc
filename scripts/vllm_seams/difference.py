"""How a name of vLLM differs between two of them."""

from __future__ import annotations

import ast
import difflib

from flashedge.engine.vllm.seams.source import VllmSource, digest_tree


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
