"""Cost curves: the roofline equals the simulator's, and measured points are interpolated."""

from typing import Any

import pytest

from flashedge.errors import ConfigError
from flashedge.scheduling.costs import RTX_4090, RooflineCurve, interpolate_measurements
from scripts.bench.flashtts.shapes import QWEN25_7B
from scripts.lab.sim.engine_loop import estimate_step_s

POINTS: dict[str, Any] = {
    "batches": (1, 4),
    "contexts": (0, 100),
    "decode": ((1.0, 2.0), (3.0, 8.0)),
    "tokens": (10, 20),
    "prefill": (1.0, 1.5),
}


def test_the_roofline_equals_the_simulators() -> None:
    curve = RooflineCurve(device=RTX_4090, shape=QWEN25_7B)
    for batch in (1, 7, 512):
        decode = estimate_step_s(RTX_4090, QWEN25_7B, [(300, 1)] * batch)
        assert curve.decode_at(300)(batch) == pytest.approx(decode)
        prefill = estimate_step_s(RTX_4090, QWEN25_7B, [(300, 52)] * batch)
        assert curve.prefill_at(300, 52)(batch) == pytest.approx(prefill)


def test_measured_points_are_interpolated_and_grow_in_proportion_beyond_the_last() -> None:
    curve = interpolate_measurements(**POINTS)
    decode = {(1, 0): 1.0, (4, 100): 8.0, (1, 50): 1.5, (2, 0): 1 + 2 / 3, (8, 100): 16.0}
    for (batch, context), seconds in {**decode, (4, 200): 16.0}.items():
        assert curve.decode_at(context)(batch) == pytest.approx(seconds)
    for batch, new, seconds in ((1, 10, 1.0), (1, 2, 1.0), (3, 5, 1.25), (2, 20, 3.0)):
        assert curve.prefill_at(0, new)(batch) == pytest.approx(seconds)


def test_noise_never_makes_more_work_faster() -> None:
    noisy = {**POINTS, "decode": ((2.0, 1.9), (1.8, 2.5)), "prefill": (1.0, 0.9)}
    curve = interpolate_measurements(**noisy)
    assert curve.decode == ((2.0, 2.0), (2.0, 2.5))
    assert curve.prefill == (1.0, 1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batches": (4, 1)}, r"batches \[4, 1\] must rise"),
        ({"tokens": (10, float("nan"))}, "tokens .* must rise"),
        ({"decode": ((1.0, 2.0),)}, "2 rows of 2 times"),
        ({"prefill": (1.0,)}, "2 times"),
        ({"prefill": (0.0, 1.0)}, "0.0 s is not a positive time"),
        ({"decode": ((1.0, float("inf")), (3.0, 8.0))}, "inf s is not a positive time"),
    ],
)
def test_unusable_points_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        interpolate_measurements(**{**POINTS, **change})
    assert error.value.hint == "run `flashedge profile`"
