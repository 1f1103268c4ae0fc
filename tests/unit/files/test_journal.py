"""A journal of finished work: what survives a crash, and what is refused."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from flashedge.errors import ConfigError, Conflict, StoreError
from flashedge.files.journal import Journal

SETTINGS = {"seed": 1, "sizes": (2, 3)}


@dataclass(frozen=True)
class Note:
    id: int
    text: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


NOTES = [Note(1, "é\u2028"), Note(2, "two"), Note(3, "")]


def open_notes(
    path: Path, settings: dict[str, Any] | None = SETTINGS, *notes: Note
) -> Journal[int, Note]:
    """A journal to which these notes are appended."""
    journal = Journal(path, settings, lambda fields: Note(**fields), key=lambda note: note.id)
    for note in notes:
        journal.append(note)
    return journal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "notes.jsonl"


@pytest.mark.parametrize("settings", [SETTINGS, None])
def test_a_journal_torn_at_any_byte_resumes(path: Path, settings: dict[str, Any] | None) -> None:
    open_notes(path, settings, *NOTES).close()
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with open_notes(path, settings) as journal:
            kept = list(journal.records.values())
            assert kept == NOTES[: len(kept)]
            for note in NOTES[len(kept) :]:
                journal.append(note)
        assert path.read_bytes() == whole


@pytest.mark.parametrize("settings", [SETTINGS, None])
def test_dropped_records_stay_dropped(path: Path, settings: dict[str, Any] | None) -> None:
    with open_notes(path, settings, *NOTES) as journal:
        journal.drop([1, 3])
        with pytest.raises(Conflict):
            open_notes(path, settings)
        journal.append(NOTES[0])
    with open_notes(path, settings) as journal:
        assert list(journal.records.values()) == [NOTES[1], NOTES[0]]
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_records_after_a_drop_that_failed_late_are_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was replaced already, so later records must go to the new one."""

    def fail(path: Path) -> None:
        raise OSError(5, "Input/output error")

    with open_notes(path, None, *NOTES) as journal:
        with monkeypatch.context() as patch:
            patch.setattr("flashedge.files.journal.sync_folder", fail)
            with pytest.raises(StoreError):
                journal.drop([1, 2, 3])
        journal.append(NOTES[0])
    with open_notes(path, None) as journal:
        assert list(journal.records.values()) == [NOTES[0]]


@pytest.mark.parametrize("content", ["a letter", "a letter\n", '{"id": 1}\n'])
def test_a_foreign_file_is_not_touched(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(ConfigError, match="no file of finished work"):
        open_notes(path)
    assert path.read_text() == content


@pytest.mark.parametrize("line", ["{}", "[]", "x", "", '{"id": 1, "text": "again"}'])
def test_a_damaged_or_repeated_line_is_named(path: Path, line: str) -> None:
    open_notes(path, SETTINGS, NOTES[0]).close()
    path.write_text(path.read_text() + line + "\n")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="line 3 is damaged or repeats a record"):
        open_notes(path)
    assert path.read_bytes() == before


def test_other_settings_are_refused(path: Path) -> None:
    open_notes(path).close()
    with pytest.raises(Conflict, match=r"made with sizes \[2, 3\], not sizes \[2\]"):
        open_notes(path, {**SETTINGS, "sizes": (2,)})
    with pytest.raises(Conflict, match="made with seed 1, not no seed"):
        open_notes(path, {"sizes": (2, 3)})


def test_a_full_disk_leaves_no_torn_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Mock(side_effect=OSError(28, "No space left on device"))
    with open_notes(path, SETTINGS, NOTES[0]) as journal:
        before = path.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(StoreError, match="No space left"):
                journal.append(NOTES[1])
            with pytest.raises(StoreError, match="No space left"):
                journal.drop([1])
        assert path.read_bytes() == before
        assert list(journal.records) == [1]
        journal.append(NOTES[1])
    with open_notes(path) as journal:
        assert list(journal.records) == [1, 2]
