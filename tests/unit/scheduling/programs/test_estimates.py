"""What users see of runs and programs: when they are expected to start, and how long they are."""

from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashedge.scheduling.lengths.distribution import LogT
from flashedge.scheduling.programs import estimates
from flashedge.scheduling.programs.estimates import SearchSpeed, predict_starts
from flashedge.scheduling.programs.program import Kind, Member, Program, Work
from tests.support.length_rig import LogNormal


def work(left: float | None, outputs: int = 1) -> Member:
    """A run with so many tokens left. None: its length is not predicted."""
    lengths = None if left is None else LogT(1.0, 0.1)
    made = Member(outputs=outputs, max_tokens=10, lengths=lengths)
    made.work = Work(expected=left or 0.0, tail=0.0)
    return made


@pytest.mark.parametrize(
    ("running", "waiting", "starts"),
    [
        ([work(100)], [work(50), work(30), work(7)], [10.0, 15.0, 18.0]),
        # the first of two is over after 20 s; the second has 200 left, which it shares from then on
        ([work(100), work(300)], [work(400), work(1)], [20.0, 60.0]),
        # eight outputs of ten tokens and two of ten are over at the same time
        ([work(80, 8), work(20, 2)], [work(1), work(1)], [10.0, 10.0]),
        ([], [work(20), work(1)], [0.0, 2.0]),
        ([work(100), work(None)], [work(1)], [None]),
        ([work(100)], [work(None), work(5)], [10.0, None]),
    ],
)
def test_waiting_runs_start_as_running_ones_end(
    running: list[Member], waiting: list[Member], starts: list[float | None]
) -> None:
    """At ten tokens a second, whatever the batch."""
    assert predict_starts(running, waiting, lambda batch: 10.0) == pytest.approx(starts)


def test_a_larger_batch_may_be_faster() -> None:
    """Where each sequence draws ten tokens a second however many there are, a run of sixteen
    sequences takes no longer than a run of one."""
    starts = predict_starts([work(30, 1)], [work(320, 16), work(1)], lambda batch: 10.0 * batch)
    assert starts == pytest.approx([3.0, 5.0])
    assert predict_starts([work(1)], [work(1)], None) == [None], "no speed is known"


lengths = st.tuples(st.floats(1, 1e5), st.integers(1, 64)).map(lambda pair: work(*pair))


@given(
    running=st.lists(lengths, min_size=1, max_size=8),
    waiting=st.lists(lengths, max_size=20),
    rate=st.floats(0.1, 1e5),
)
def test_starts_follow_the_order_and_the_work(
    running: list[Member], waiting: list[Member], rate: float
) -> None:
    starts = predict_starts(running, waiting, lambda batch: rate)
    found = [start for start in starts if start is not None]
    assert len(found) == len(waiting)
    assert found == sorted(found)
    everything = sum(run.work.expected for run in (*running, *waiting))
    assert all(0.0 <= start <= everything / rate * (1 + 1e-9) for start in found)
    quicker = predict_starts(running, waiting, lambda batch: 2 * rate)
    assert quicker == pytest.approx([start / 2 for start in found])


LENGTHS = LogNormal(mu=log(100), sigma=0.5)
UPPER_TENTH = 1.2816  # of the standard normal distribution


def make(key: str, started_s: float | None = None, **fields: object) -> Program:
    member = Member(**{"outputs": 4, "max_tokens": 10_000, **fields})  # type: ignore[arg-type]
    times = {"arrived_s": 10.0, "started_s": started_s}
    return Program(key=key, client="me", **times, members={key: member})


def test_places_count_the_programs_in_the_queue() -> None:
    programs = [make("q", kind=Kind.CHAT), make("r", started_s=12.0), make("a"), make("b")]
    queued = {"r": 1.0, "b": None, "a": 3.0}  # one of r's runs still waits, the program does not
    found = estimates.estimate_programs("pair", programs, 20.0, queued)
    assert [(s.key, s.place, s.has_started, s.starts_in_s, s.waited_s) for s in found] == [
        ("q", None, False, None, 10.0),
        ("r", None, True, None, 2.0),  # until its start, the others until now
        ("a", 0, False, 3.0, 10.0),
        ("b", 1, False, None, 10.0),
    ]


def test_a_predicted_program_has_a_median_and_a_tail() -> None:
    programs = [make("a"), make("b", lengths=LENGTHS, kind=Kind.BATCH)]
    unknown, known = estimates.estimate_programs("pair", programs, 20.0, {})
    assert (unknown.median_tokens, unknown.tail_tokens) == (None, None)
    assert (unknown.left_tokens, known.kind) == (4 * 10_000, "batch")
    assert known.median_tokens == pytest.approx(100, rel=0.01)
    assert known.tail_tokens == pytest.approx(100 * exp(0.5 * UPPER_TENTH), rel=0.01)
    assert known.left_tokens == pytest.approx(4 * 100 * exp(0.5**2 / 2), rel=0.01)


def draw(speed: SearchSpeed, start_s: float, end_s: float, per_s: float, every_s: float) -> None:
    """Tokens at a steady speed, which arrive every so many seconds, as those of levels do."""
    now_s = start_s + every_s
    while now_s <= end_s:
        speed.add_tokens(round(per_s * every_s), now_s)
        now_s += every_s


def test_nothing_is_known_before_searches_have_run_for_a_while() -> None:
    speed = SearchSpeed()
    assert speed.measure(100.0) is None
    speed.add_sequences(8, 100.0)
    speed.add_tokens(500, 100.0 + estimates.LEAST_S / 2)
    assert speed.measure(100.0 + estimates.LEAST_S / 2) is None
    assert speed.measure(101.0)(8) == pytest.approx(500, rel=0.05)


@pytest.mark.parametrize("every_s", [0.1, 2.0])
def test_a_steady_speed_is_measured(every_s: float) -> None:
    """To within a level: right behind one more tokens were counted than the time explains."""
    speed = SearchSpeed()
    speed.add_sequences(8, 0.0)
    draw(speed, 0.0, 60.0, 50.0, every_s)
    assert speed.measure(60.0)(8) == pytest.approx(50.0, rel=0.03 + every_s / 20)


def test_the_first_level_is_no_rush() -> None:
    speed = SearchSpeed()
    speed.add_sequences(8, 0.0)
    for i in range(16):
        speed.add_tokens(20, 4.0 + i * 0.001)
    assert speed.measure(4.1)(8) == pytest.approx(16 * 20 / 4.1, rel=0.15)


def test_idle_time_does_not_count() -> None:
    speed = SearchSpeed()
    speed.add_sequences(8, 0.0)
    draw(speed, 0.0, 10.0, 50.0, 0.1)
    before = speed.measure(10.0)(8)
    speed.add_sequences(-8, 10.0)
    assert speed.measure(5000.0)(8) == before
    speed.add_sequences(8, 5000.0)
    draw(speed, 5000.0, 5060.0, 200.0, 0.1)
    assert speed.measure(5060.0)(8) == pytest.approx(200.0, rel=0.06), "the newer speed counts"


def test_the_curve_says_how_the_speed_grows_with_the_batch() -> None:
    """Half of what the curve promises for 4 sequences is half of what it promises for 64."""
    speed = SearchSpeed()
    speed.set_curve(lambda batch: 0.01 + 0.001 * batch)
    for sequences in (1, 3):
        speed.add_sequences(sequences, 0.0)
    draw(speed, 0.0, 20.0, 0.5 * 4 / 0.014, 0.1)
    expected = pytest.approx([0.5 * 4 / 0.014, 0.5 * 64 / 0.074], rel=0.03)
    assert [speed.measure(20.0)(batch) for batch in (4, 64)] == expected
    speed.set_curve(None)
    assert speed.measure(20.0) is None
