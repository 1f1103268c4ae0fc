"""How many programs run at once."""

from dataclasses import replace
from math import log

import pytest

from flashedge.scheduling.lengths.distribution import LogT
from flashedge.scheduling.programs import admission
from flashedge.scheduling.programs.admission import Capacity, Need, can_start, predict_need
from flashedge.scheduling.programs.program import Member

ROOM = Capacity(kv_tokens=1000, max_running=3, useful_sequences=32)


def need(kv_tokens: int, sequences: int = 1) -> Need:
    return Need(kv_tokens=kv_tokens, sequences=sequences)


@pytest.mark.parametrize(
    ("asked", "running", "starts"),
    [
        (need(400), [need(600)], True),
        (need(401), [need(600)], False),
        (need(5000, 900), [], True),  # it fits nowhere, so it runs alone
        (need(5000, 900), [need(1)], False),
        (need(1, 16), [need(1, 16)], True),
        (need(1, 17), [need(1, 16)], False),  # more sequences than the engine has use for
        (need(0, 0), [need(1)] * 3, False),  # max_running is a ceiling
    ],
)
def test_a_program_starts_where_it_fits(asked: Need, running: list[Need], starts: bool) -> None:
    assert can_start(asked, running, ROOM) is starts


@pytest.mark.parametrize("width", [None, 5, 32])
def test_a_need_is_predicted_from_the_lengths_or_else_from_the_limit(width: int | None) -> None:
    lengths = LogT(mu=log(100), sigma=1e-3)
    run = Member(outputs=16, width=width, max_tokens=4096, prompt_tokens=50, lengths=lengths)
    found, unpredicted = predict_need(run), predict_need(Member(outputs=2, max_tokens=1000))
    assert found.sequences == (width or 16)
    assert found.kv_tokens == pytest.approx(50 + 100 * found.sequences, abs=5)
    assert unpredicted.kv_tokens == 2 * 1000 * admission.UNPREDICTED_SHARE


def test_the_useful_batch_ends_where_steps_grow_with_the_batch() -> None:
    def flat_then_linear(batch: int) -> float:
        return max(1.0, batch / 16)

    assert admission.find_useful_batch(flat_then_linear, 256) == 16
    assert admission.find_useful_batch(lambda batch: 1.0, 256) == 256, "a flat step: all of them"
    assert admission.find_useful_batch(lambda batch: float(batch), 256) == 1, "nothing is gained"
    assert admission.find_useful_batch(lambda batch: 1.0, 100) == 100, "no power of two"


def test_a_larger_part_counts_at_once_and_a_smaller_one_slowly() -> None:
    shares = admission.KvShares()
    for seen, kept in ((0.3, 0.3), (0.5, 0.5), (0.4, 0.48)):
        shares.learn("beam", seen)
        assert shares.find("beam") == pytest.approx(kept)
    assert shares.find("dvts") == 1.0


def test_searches_that_share_prefixes_run_together() -> None:
    """Six searches of 64 paths, as they were seen on the bundled pair: 270 tokens a path."""
    room = Capacity(kv_tokens=26_214, max_running=8, useful_sequences=256)
    whole = Member(max_tokens=1080, outputs=64, prompt_tokens=100)
    assert not can_start(predict_need(whole), [predict_need(whole)], room)
    share = predict_need(replace(whole, kv_share=0.35))
    assert share.kv_tokens == 100 + round(0.35 * 64 * 270)
    assert can_start(share, [share, share], room)
    assert not can_start(share, [share] * 4, room)
