"""Scoring goes on after the last whole line."""

from pathlib import Path

from scripts.bench.certainty.score import count_whole_lines


def test_a_line_that_was_cut_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "scored.jsonl"
    assert count_whole_lines(path) == 0
    path.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert count_whole_lines(path) == 2
    assert path.read_text() == '{"a": 1}\n{"a": 2}\n'
    assert count_whole_lines(path) == 2
    path.write_text('{"a"')
    assert count_whole_lines(path) == 0
    assert not path.exists()
