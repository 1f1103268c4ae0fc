"""What the daemon computes for a token."""

from __future__ import annotations

import pytest

from flashedge.runtime.rollouts.daemon_time import LEAST_TOKENS, MOST_TOKENS, DaemonTime


class Rig:
    """A daemon whose processor time and tokens are as the test says."""

    def __init__(self) -> None:
        self.cpu_s, self.tokens = 7.0, 300
        self.daemon = DaemonTime(lambda: self.tokens, lambda: self.cpu_s)

    def work(self, tokens: int, spent_s: float) -> None:
        self.tokens += tokens
        self.cpu_s += spent_s


def test_it_is_unknown_until_enough_tokens_are_drawn() -> None:
    rig = Rig()
    rig.daemon.look()
    rig.work(LEAST_TOKENS - 1, 1.0)
    rig.daemon.look()
    assert rig.daemon.token_s == 0.0
    rig.work(1, 0.0)
    rig.daemon.look()
    assert rig.daemon.token_s == pytest.approx(1.0 / LEAST_TOKENS)


def test_a_pause_counts_what_came_before_it_and_nothing_after_it() -> None:
    rig = Rig()
    for _ in range(10):
        rig.daemon.look()
        rig.work(100, 0.1)
        rig.daemon.pause()
        rig.work(7, 50.0)
    assert rig.daemon.token_s == pytest.approx(1e-3)


def test_what_was_long_ago_is_outweighed() -> None:
    """A daemon that took 1 ms for a token takes 2 ms now."""
    rig = Rig()
    rig.daemon.look()
    rig.work(MOST_TOKENS, MOST_TOKENS * 1e-3)
    rig.daemon.look()
    for _ in range(5):
        rig.work(MOST_TOKENS, MOST_TOKENS * 2e-3)
        rig.daemon.look()
    assert rig.daemon.token_s == pytest.approx(2e-3, rel=0.05)
