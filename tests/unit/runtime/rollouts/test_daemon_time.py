"""What the daemon computes for a token of boosted runs."""

from __future__ import annotations

import pytest

from flashedge.runtime.rollouts.daemon_time import LEAST_TOKENS, MOST_TOKENS, DaemonTime


class Processor:
    """The processor time of a daemon, as the test says."""

    def __init__(self) -> None:
        self.now_s = 7.0

    def __call__(self) -> float:
        return self.now_s


def work(daemon: DaemonTime, cpu: Processor, tokens: int, spent_s: float, share: float = 1) -> None:
    daemon.note_tokens(tokens)
    cpu.now_s += spent_s
    daemon.look(share)


def test_it_is_unknown_until_enough_tokens_are_drawn() -> None:
    cpu = Processor()
    daemon = DaemonTime(cpu)
    daemon.look(1.0)
    work(daemon, cpu, LEAST_TOKENS - 1, 1.0)
    assert daemon.token_s == 0.0
    work(daemon, cpu, 1, 0.0)
    assert daemon.token_s == pytest.approx(1.0 / LEAST_TOKENS)


def test_time_spent_for_others_or_while_nothing_is_boosted_does_not_count() -> None:
    cpu = Processor()
    daemon = DaemonTime(cpu)
    daemon.look(1.0)
    work(daemon, cpu, 1_000, 2.0, share=0.25)
    daemon.pause()
    cpu.now_s += 100.0
    daemon.look(1.0)
    assert daemon.token_s == pytest.approx(0.5 / 1_000)


def test_what_was_long_ago_is_outweighed() -> None:
    """A daemon that took 1 ms for a token takes 2 ms now."""
    cpu = Processor()
    daemon = DaemonTime(cpu)
    daemon.look(1.0)
    work(daemon, cpu, MOST_TOKENS, MOST_TOKENS * 1e-3)
    for _ in range(5):
        work(daemon, cpu, MOST_TOKENS, MOST_TOKENS * 2e-3)
    assert daemon.token_s == pytest.approx(2e-3, rel=0.05)
