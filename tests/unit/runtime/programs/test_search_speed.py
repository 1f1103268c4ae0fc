"""The measured speed of searches."""

from __future__ import annotations

import pytest

from flashedge.runtime.programs.search_speed import LEAST_S, SearchSpeed


def measure(speed: SearchSpeed, now_s: float, sequences: int = 8) -> float:
    found = speed.measure(now_s)
    assert found is not None
    return found(sequences)


def draw(
    speed: SearchSpeed, start_s: float, end_s: float, tokens_per_s: float, every_s: float
) -> None:
    """Tokens at a steady speed, which arrive every so many seconds, as those of levels do."""
    now_s = start_s + every_s
    while now_s <= end_s:
        speed.add(round(tokens_per_s * every_s), now_s)
        now_s += every_s


def test_nothing_is_known_before_searches_have_run_for_a_while() -> None:
    speed = SearchSpeed()
    assert speed.measure(100.0) is None
    speed.start("a", 8, 100.0)
    speed.add(500, 100.0 + LEAST_S / 2)
    assert speed.measure(100.0 + LEAST_S / 2) is None
    assert measure(speed, 101.0) == pytest.approx(500, rel=0.05)


@pytest.mark.parametrize("every_s", [0.1, 2.0])
def test_a_steady_speed_is_measured(every_s: float) -> None:
    """To within a level: right behind one more tokens were counted than the time explains."""
    speed = SearchSpeed()
    speed.start("a", 8, 0.0)
    draw(speed, 0.0, 60.0, 50.0, every_s)
    assert measure(speed, 60.0) == pytest.approx(50.0, rel=0.03 + every_s / 20)


def test_the_first_level_is_no_rush() -> None:
    """Sixteen steps that end within a moment were drawn since the run started."""
    speed = SearchSpeed()
    speed.start("a", 8, 0.0)
    for i in range(16):
        speed.add(20, 4.0 + i * 0.001)
    assert measure(speed, 4.1) == pytest.approx(16 * 20 / 4.1, rel=0.15)


def test_idle_time_does_not_count() -> None:
    speed = SearchSpeed()
    speed.start("a", 8, 0.0)
    draw(speed, 0.0, 10.0, 50.0, 0.1)
    before = measure(speed, 10.0)
    speed.end("a", 10.0)
    assert measure(speed, 5000.0) == before
    speed.start("b", 8, 5000.0)
    speed.end("never ran", 5000.0)
    draw(speed, 5000.0, 5060.0, 200.0, 0.1)
    assert measure(speed, 5060.0) == pytest.approx(200.0, rel=0.06), "the newer speed counts"


def test_the_curve_says_how_the_speed_grows_with_the_batch() -> None:
    """Half of what the curve promises for 4 sequences is half of what it promises for 64."""
    speed = SearchSpeed()
    speed.set_curve(lambda batch: 0.01 + 0.001 * batch)
    speed.start("a", 1, 0.0)
    speed.start("b", 3, 0.0)
    draw(speed, 0.0, 20.0, 0.5 * 4 / 0.014, 0.1)
    assert measure(speed, 20.0, 4) == pytest.approx(0.5 * 4 / 0.014, rel=0.03)
    assert measure(speed, 20.0, 64) == pytest.approx(0.5 * 64 / 0.074, rel=0.03)
    speed.set_curve(None)
    assert speed.measure(20.0) is None
