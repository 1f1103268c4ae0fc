"""Search algorithms by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from flashedge.errors import NotFound
from flashedge.search.base import Search
from flashedge.search.beam import Beam
from flashedge.search.best_of_n import BestOfN

STRATEGIES: Mapping[str, str] = MappingProxyType(
    {
        "beam": "step by step, the verifier keeps the best paths",
        "best_of_n": "n whole answers, the verifier weighs them",
    }
)
_SUFFIXED = re.compile(r"(.+)-(\d{1,9})", re.ASCII)


def parse_strategy(text: str) -> tuple[str, int | None]:
    """`"beam-16"` -> ("beam", 16); `"beam"` -> ("beam", None). Raises NotFound.

    Hyphens may stand for underscores (best-of-n-16). The range of n is not checked here.
    """
    suffixed = _SUFFIXED.fullmatch(text)
    name, n = (suffixed[1], int(suffixed[2])) if suffixed else (text, None)
    return _known(name.replace("-", "_"), text), n


def make_search(
    strategy: str,
    *,
    n: int,
    branching: int,
    aggregate: str,
    selection: str,
    max_step_tokens: int,
    max_steps: int,
) -> Search[Any]:
    """The search of that name; an algorithm takes what it knows. Raises NotFound."""
    if _known(strategy, strategy) == "best_of_n":
        return BestOfN(n=n, aggregate=aggregate, selection=selection)
    return Beam(
        n=n,
        aggregate=aggregate,
        selection=selection,
        branching=branching,
        max_step_tokens=max_step_tokens,
        max_steps=max_steps,
    )


def _known(name: str, asked: str) -> str:
    if name not in STRATEGIES:
        known = ", ".join(STRATEGIES)
        raise NotFound(f"no strategy {asked!r}; known: {known}", param="strategy")
    return name
