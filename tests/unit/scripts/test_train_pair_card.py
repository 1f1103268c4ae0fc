"""The model card shows the figures of the report."""

from scripts.train_pair.card import format_choices, format_paired


def figure(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.04, "high": value + 0.04}


def test_every_figure_stands_under_its_n() -> None:
    accuracy = {"greedy": figure(0.6), "sample": figure(0.5)}
    for i, n in enumerate((4, 16)):
        for j, way in enumerate(
            ("majority@{}", "best-of-{} (last)", "weighted vote@{} (last)", "beam-{}", "pass@{}")
        ):
            accuracy[way.format(n)] = figure(0.5 + i / 10 + j / 100)
    lines = format_choices(accuracy).splitlines()
    assert lines[0] == "| choice | n = 4 | n = 16 |"
    assert lines[2] == "| greedy | 60.0 % (56–64) |  |"
    assert lines[3] == "| one sample (mean) |  | 50.0 % (46–54) |"
    assert lines[4] == "| majority | 50.0 % (46–54) | 60.0 % (56–64) |"
    assert lines[-1] == "| some chain right | 54.0 % (50–58) | 64.0 % (60–68) |"


def test_a_loss_has_its_sign() -> None:
    found = format_paired({"beam-4 minus majority@4": {"value": -0.01, "low": -0.05, "high": 0.03}})
    assert found.splitlines()[-1] == "| beam-4 minus majority-4 | -1.0 (-5.0 to +3.0) |"
