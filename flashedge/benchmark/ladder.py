"""The optimizations one after the other, each on top of those before: the rows of every table.

Which switch a rung turns on is said here and nowhere else: the simulation reads it, and so does
the bench on real engines, whose switches are the keys of `[scheduling]`. The rungs are the paper's
(arXiv 2509.00195 §6); what is not is off on all of them. `ONCE` is ours, beside the last of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from flashedge.errors import NotFound

SWITCHES = ("prefix_order", "kv_split", "speculation", "lookahead", "score_once")
NO_RUNGS = ("early_scores",)
PREFIX = "scheduling_"  # of a switch as a field of Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """switches: those that are on; stock: the naive twin (boundary by stop string, whole-path
    scoring, half of the KV for each engine), which has none."""

    name: str
    about: str
    switches: frozenset[str] = frozenset()
    stock: bool = False

    def settings(self, known: Collection[str]) -> dict[str, bool]:
        """Fields of Config that say it; `known`: those that there are."""
        every = (*SWITCHES, *NO_RUNGS)
        named = {PREFIX + switch: switch in self.switches for switch in every}
        return {field: on for field, on in named.items() if field in known}

    def missing(self, known: Collection[str]) -> tuple[str, ...]:
        """Switches that it turns on and that this version does not have."""
        return tuple(s for s in SWITCHES if s in self.switches and PREFIX + s not in known)


def _rungs() -> Iterable[Rung]:
    yield Rung(name="stock", about="stock loop", stock=True)
    yield Rung(name="suffix", about="+ suffix scoring")
    on: frozenset[str] = frozenset()
    for name, about, switch in (
        ("+P", "+ prefix order (P)", "prefix_order"),
        ("+P+M", "+ KV split (M)", "kv_split"),
        ("+P+M+S", "+ speculation (S)", "speculation"),
        ("+lookahead", "+ lookahead", "lookahead"),
    ):
        on |= {switch}
        yield Rung(name=name, about=about, switches=on)


RUNGS: tuple[Rung, ...] = tuple(_rungs())  # of the paper
ONCE = Rung(
    name="+P+M+S+once",
    about="+ equal paths scored once (ours), no lookahead",
    switches=frozenset(SWITCHES) - {"lookahead"},
)
ALL = (*RUNGS, ONCE)


def rungs(names: Collection[str] | None = None) -> tuple[Rung, ...]:
    """Those of that name in the order of the ladder, all for None; the stock loop, what the
    others are compared with, is always the first. Raises NotFound."""
    known = {rung.name for rung in ALL}
    for name in names or ():
        if name not in known:
            raise NotFound(f"there is no rung {name!r}", hint=f"known: {', '.join(known)}")
    return tuple(r for r in ALL if names is None or r.stock or r.name in names)
