"""The requests with known lengths that the `lengths` commands work on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flashedge.cli import output
from flashedge.client.words import format_count
from flashedge.config import Config
from flashedge.errors import RequestError

if TYPE_CHECKING:
    from flashedge.models.specs import Pair
    from flashedge.runtime.lengths.base import EncodePrompt
    from flashedge.scheduling.lengths.request import FinishedOutputs

MIN_PROMPTS = 200
"""Distinct prompts to train on, the held-out ones included."""
MIN_HELD_OUT = 20
MOST_RUNS = 20_000


def read_finished(
    file: Path | None, pair: Pair, config: Config, encode: EncodePrompt
) -> list[FinishedOutputs]:
    """Read a file of lengths, or the stored runs of the pair since its files last changed.

    Raises ConfigError, StoreError.
    """
    from flashedge.models.folders import last_change_s
    from flashedge.runtime.lengths.examples import read_file
    from flashedge.runtime.lengths.stored_runs import read_newest
    from flashedge.runtime.records.store import FILE, RunStore

    if file is not None:
        return read_file(file, pair.name, encode)
    path = config.state_dir / FILE
    if not path.exists():
        return []
    store = RunStore(path)
    try:
        since_s = last_change_s(pair, config)
        found = read_newest(store, limit=MOST_RUNS, pair=pair.name, since_s=since_s, encode=encode)
    finally:
        store.close()
    output.note(f"read {format_count(len(found), 'stored run')} of {pair.name}")
    return found


def check_enough(count: int, needed: int, what: str, file: Path | None) -> None:
    """Raises RequestError if there are fewer than `needed` distinct prompts, or paths for them."""
    if count >= needed:
        return
    more = format_count(needed - count, "more prompt")
    hint = f"add {more} to {file}" if file else f"solve {more}, or give a file of lengths"
    raise RequestError(
        f"{format_count(count, 'distinct prompt')} {'is' if count == 1 else 'are'} too few: it"
        f" takes {needed} {what}",
        hint=hint,
        param="prompts",
    )
