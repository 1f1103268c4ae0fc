"""The part of its paths' tokens that a search holds: what was measured, on the safe side."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashedge.scheduling.programs.admission import Capacity, can_start, predict_need
from flashedge.scheduling.programs.kv_share import KvShares
from flashedge.scheduling.programs.program import Program


def test_a_strategy_that_has_not_run_holds_all() -> None:
    assert KvShares().find("beam") == 1.0


def test_a_larger_part_counts_at_once_and_a_smaller_one_slowly() -> None:
    shares = KvShares()
    shares.learn("beam", 0.3)
    assert shares.find("beam") == 0.3
    shares.learn("beam", 0.5)
    assert shares.find("beam") == 0.5
    shares.learn("beam", 0.4)
    assert shares.find("beam") == pytest.approx(0.48)
    assert shares.find("dvts") == 1.0


def test_searches_that_share_prefixes_run_together() -> None:
    """Six searches of 64 paths, as they were seen on the bundled pair: 270 tokens a path."""
    room = Capacity(kv_tokens=26_214, max_running=8, useful_sequences=256)
    whole = Program(key="a", arrived_s=0.0, max_tokens=1080, outputs=64, prompt_tokens=100)
    assert not can_start(predict_need(whole), [predict_need(whole)], room)
    need = predict_need(replace(whole, kv_share=0.35))
    assert need.kv_tokens == 100 + round(0.35 * 64 * 270)
    assert can_start(need, [need, need], room)
    assert not can_start(need, [need] * 4, room)
