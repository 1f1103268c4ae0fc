"""Plots as pictures and as text."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from flashedge.errors import ConfigError
from flashedge.plots import draw_plot, draw_text_plot

SERIES = {"first": [(0.0, 1.0), (1.0, 3.0)], "second": [(0.0, 2.0), (0.5, math.nan), (1.0, 0.0)]}


def draw(path: Path, **options: Any) -> None:
    draw_plot(path, SERIES, title="A title", x="time", y="value", **options)


def test_an_svg_is_whole_and_the_same_each_time(tmp_path: Path) -> None:
    draw(tmp_path / "a.svg")
    draw(tmp_path / "b.svg")
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    formula = r"$\frac{1}{$ a$b$"  # it is drawn as it is
    series = {formula: [(0, 1), (1, 2)]}
    draw_plot(tmp_path / "c.svg", series, title=formula, x=formula, y=formula)
    assert (tmp_path / "c.svg").stat().st_size > 0


def test_each_option_changes_the_picture(tmp_path: Path) -> None:
    draw(tmp_path / "plain.svg")
    plain = (tmp_path / "plain.svg").read_bytes()
    for option in ("steps", "diagonal", "points", "log", "marks"):
        draw(tmp_path / f"{option}.svg", **{option: ("first",) if option == "marks" else True})
        assert (tmp_path / f"{option}.svg").read_bytes() != plain, option
    line = [(0.0, 0.0), (1.0, 1.0)]
    drawn = [
        draw_text_plot({"a": line}, title="t", x="x", y="y", width=40, height=15, marks=marks)
        for marks in ((), ("a",))
    ]
    assert len(drawn[0].replace(" ", "")) > len(drawn[1].replace(" ", "")), "without a line"


def test_the_suffix_decides_and_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    draw(tmp_path / "new" / "plot.PNG")
    assert (tmp_path / "new" / "plot.PNG").read_bytes().startswith(b"\x89PNG")
    for name in ("plot.gif", "plot"):
        with pytest.raises(ConfigError, match=name) as caught:
            draw(tmp_path / name)
        assert ".svg or .png" in caught.value.line
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.svg").mkdir()
    for name in ("file/plot.svg", "folder.svg"):
        with pytest.raises(ConfigError, match=name):
            draw(tmp_path / name)


def test_a_terminal_plot_has_its_size_and_its_words() -> None:
    words = {"title": "A title", "x": "time", "y": "value"}
    for width, height in ((60, 15), (120, 30)):
        text = draw_text_plot(SERIES, **words, width=width, height=height)
        lines = text.splitlines()
        assert (len(lines), max(map(len, lines))) == (height, width)
        assert {word for word in (*words.values(), *SERIES) if word not in text} == set()
        assert "\x1b" not in text
    text = draw_text_plot({"new": [(0, 0), (1, 1)]}, title="t", x="x", y="y", width=60, height=15)
    assert not [word for word in (*words.values(), *SERIES) if word in text], "nothing is left"


def test_the_libraries_are_imported_only_to_draw() -> None:
    code = "import sys, flashedge.plots; print({'matplotlib', 'plotext'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
