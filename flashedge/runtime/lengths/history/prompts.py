"""Prompts that are known by themselves, because they ran before. Bounded in number."""

from __future__ import annotations

from collections import OrderedDict

from flashedge.runtime.lengths.history.cell import Cell
from flashedge.runtime.lengths.history.settings import HistorySettings
from flashedge.scheduling.lengths.observed import OutputLengths
from flashedge.scheduling.lengths.request import LengthRequest


class Prompts:
    """The outputs of each prompt. They fade with its own runs, and more slowly with all others."""

    def __init__(self, settings: HistorySettings) -> None:
        self._most = settings.max_prompts
        self._keep_own = 0.5 ** (1 / settings.prompt_half_life_runs)
        self._keep_other = 0.5 ** (1 / settings.half_life_runs)
        self._cells: OrderedDict[str, tuple[Cell, int]] = OrderedDict()
        self._runs = 0

    def __len__(self) -> int:
        return len(self._cells)

    def find(self, request: LengthRequest) -> Cell | None:
        """The outputs of this very prompt on this pair. None where it never ran."""
        return self._find(_name(request))

    def add(self, request: LengthRequest, lengths: OutputLengths) -> None:
        """Add a run. The prompt that ran longest ago is dropped where there are too many."""
        name = _name(request)
        cell = self._find(name) or Cell()
        cell.add(lengths, weight=1.0, share=1.0, keep=self._keep_own)
        self._runs += 1
        self._cells[name] = cell, self._runs
        self._cells.move_to_end(name)
        if len(self._cells) > self._most:
            self._cells.popitem(last=False)

    def _find(self, name: str) -> Cell | None:
        """The cell, faded by the runs since it was last used."""
        if name not in self._cells:
            return None
        cell, at = self._cells[name]
        cell.fade(self._keep_other ** (self._runs - at))
        self._cells[name] = cell, self._runs
        return cell


def _name(request: LengthRequest) -> str:
    return f"{request.pair} {request.prompt_key}"
