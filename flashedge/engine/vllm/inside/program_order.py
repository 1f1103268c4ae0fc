"""Waiting requests run in the order of their programs, which the daemon sends between two steps.

All requests of a program carry its key and keep the order of their arrival. Requests of an unknown
program go last. What runs is not interrupted, and no token depends on the order. The prefix cache
does not follow it: vLLM evicts what was used longest ago, the end of a prompt before its beginning,
and an agent whose last request is over comes back with the same history.

Ref: arXiv 2412.20993 App. D.3.1; ADR 18. Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flashedge.engine.vllm.inside.keys import PROGRAM, read_args


class ProgramOrder:
    def __init__(self) -> None:
        self.reordered = 0
        self._places: Mapping[str | None, int] = {}

    def rank(self, keys: Sequence[str]) -> None:
        self._places = {key: place for place, key in enumerate(keys)}

    def sort(self, waiting: Any) -> None:
        """Between two steps no draft is in the queue, so none gets before a standard request."""
        if not self._places:
            return

        def find_place(request: Any) -> int:
            args = read_args(request.sampling_params or request.pooling_params)
            return self._places.get(args.get(PROGRAM), len(self._places))

        before = list(waiting)
        if (in_order := sorted(before, key=find_place)) != before:
            waiting.clear()
            waiting.extend(in_order)
            self.reordered += 1
