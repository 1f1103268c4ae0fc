"""Waiting requests run in the order of their programs, which the daemon sends between two steps.

The order is of programs, not of requests: all requests of a program carry its key, and requests of
one program keep the order of their arrival. Requests of an unknown program go last. What runs is
not interrupted for it, and no token depends on it.

The prefix cache does not follow this order. vLLM evicts what was used longest ago, the end of a
prompt before its beginning: an agent whose last request is over comes back with the same history.

Ref: arXiv 2412.20993 App. D.3.1; ADR 18. Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from flashedge.engine.vllm.inside.keys import PROGRAM, read_args


class ProgramOrder:
    """Sorts a scheduler's waiting queue before each step, once an order is known."""

    def __init__(self) -> None:
        self.reordered = 0
        """Steps before which the waiting requests changed their order."""
        self._places: Mapping[str | None, int] = {}

    def rank(self, keys: Sequence[str]) -> None:
        """From the next step on, waiting requests run in the order of these programs."""
        self._places = {key: place for place, key in enumerate(keys)}

    def sort(self, waiting: Any) -> None:
        """Sort a queue. Between two steps no draft is in it, so none gets before a standard
        request."""
        if not self._places or len(waiting) < 2:
            return
        last = len(self._places)
        programs = (read_args(r.sampling_params or r.pooling_params).get(PROGRAM) for r in waiting)
        places = [self._places.get(program, last) for program in programs]
        if all(a <= b for a, b in pairwise(places)):
            return
        requests = list(waiting)
        in_order = sorted(range(len(requests)), key=places.__getitem__)
        waiting.clear()
        waiting.extend(requests[at] for at in in_order)
        self.reordered += 1
