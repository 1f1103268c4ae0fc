"""The ladder of optimizations: each rung adds one to the rungs before it. Goodput measures a rung.

Its rungs are the rows of every table. The simulation reads them, and so do the benchmarks on real
engines. `RUNGS` are the paper's (arXiv 2509.00195 §6). Of what is ours, they hold suffix scoring
alone; `ONCE` adds the rest.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from flashedge.errors import NotFound
from flashedge.optimizations import Optimizations
from scripts.lab.statistics import mean


def compute_goodput(tokens: Collection[int], done_s: Collection[float]) -> float:
    """Mean tokens of a completed path over the mean seconds to its completion. 0 without one.

    Ref: arXiv 2509.00195 §6.1.
    """
    if not tokens or not any(done_s):
        return 0.0
    return mean(list(tokens)) / mean(list(done_s))


STOCK_ENGINE = (
    "Every rung, the stock loop too, runs on FlashEdge's engine settings, with vLLM's V1 model"
    " runner. On a card `vllm serve` takes the second one, so a gain over the stock loop is not a"
    " gain over unmodified vLLM."
)
"""What readers of a ladder must know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    name: str
    about: str
    optimizations: Optimizations

    @property
    def is_stock(self) -> bool:
        return self.optimizations == Optimizations.none()


def _build_rungs() -> Iterable[Rung]:
    optimizations = Optimizations.none()
    for name, about, switches in (
        ("stock", "stock loop", ()),
        ("suffix", "+ suffix scoring", ("suffix_scoring",)),
        ("+P", "+ prefix order (P)", ("prefix_order",)),
        ("+P+M", "+ KV split (M)", ("kv_split", "offload")),
        ("+P+M+S", "+ speculation (S)", ("speculation",)),
        ("+lookahead", "+ lookahead", ("lookahead",)),
    ):
        optimizations = replace(optimizations, **dict.fromkeys(switches, True))
        yield Rung(name=name, about=about, optimizations=optimizations)


RUNGS: tuple[Rung, ...] = tuple(_build_rungs())
SUFFIX = RUNGS[1]  # a verifier with a prefix cache, and nothing else
BEST = RUNGS[-2]  # all of the paper that is on by default: lookahead is not
ONCE = Rung(
    name="+P+M+S+once",
    about="+ equal paths scored once (ours), no lookahead",
    optimizations=replace(BEST.optimizations, score_once=True),
)
ALL = (*RUNGS, ONCE)


def find_rungs(names: Collection[str] | None = None) -> tuple[Rung, ...]:
    """The rungs of these names in the order of the ladder, all of them for None. The stock loop is
    always the first. Raises NotFound."""
    known = [rung.name for rung in ALL]
    for name in names or ():
        if name not in known:
            raise NotFound(f"there is no rung {name!r}", hint=f"known: {', '.join(known)}")
    return tuple(r for r in ALL if names is None or r.is_stock or r.name in names)
