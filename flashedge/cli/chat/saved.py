"""Conversations on disk, so that `chat --continue` can go on with one.

Each is a file of JSON lines: first what its turns share, then a line for each finished turn. A last
line that a crash cut off is ignored.
"""

import contextlib
import json
import secrets
from dataclasses import asdict, dataclass, fields
from io import FileIO
from pathlib import Path
from typing import Any, Self, TypeVar

from flashedge.cli.runs import choose_id
from flashedge.config import Config
from flashedge.errors import ConfigError, Conflict, NotFound, StoreError
from flashedge.files.journal import open_locked, sync_folder, write_at_end
from flashedge.literal import format_json

_SUFFIX = ".jsonl"
_OPTIONAL = ("system", "search", "run")  # fields that may be None
K = TypeVar("K", "Opening", "Turn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What all turns of a conversation share."""

    pair: str
    system: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A message and its reply."""

    message: str
    reply: str
    search: str | None = None
    """The search that found the reply, as `/search` takes it. None stands for no search."""
    run: str | None = None
    """The id of the search's run, or None."""
    at: float
    """When the reply was whole, in unix seconds."""


class SavedChat:
    """A conversation and its file. The first `add` creates the file. It is locked from then on, or
    from `resume` on, until `close`."""

    def __init__(self, path: Path, opening: Opening, turns: list[Turn] | None = None) -> None:
        self.path = path
        self.opening = opening
        self.turns = turns or []
        self._num_written = len(self.turns)
        self._file: FileIO | None = None

    @property
    def id(self) -> str:
        return self.path.stem

    @classmethod
    def resume(cls, path: Path) -> Self:
        """Read a conversation and lock its file. Raises Conflict while another `chat` holds the
        file, ConfigError if it is damaged, and StoreError."""
        try:
            file = open_locked(path)
        except Conflict as error:
            raise Conflict(
                f"conversation {path.stem} is open in another terminal",
                hint="close it there, or go on with another one: flashedge chat --list",
            ) from error
        except OSError as error:
            raise _explain(path, "read", error) from error
        try:
            opening, turns, num_bytes = read_chat(path)
            chat = cls(path, opening, turns)
            file.truncate(num_bytes)  # without a line that a crash cut off
        except BaseException:
            file.close()
            raise
        chat._file = file
        return chat

    def add(self, turn: Turn) -> None:
        """Keep a turn, and write it after those that could not be written before. Raises
        StoreError."""
        self.turns.append(turn)
        try:
            if self._file is None:
                self._file = self._create()
            missing = self.turns[self._num_written :]
            write_at_end(self._file, b"".join(map(_encode, missing)))
        except OSError as error:
            raise _explain(self.path, "write", error) from error
        self._num_written = len(self.turns)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _create(self) -> FileIO:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.touch(mode=0o600, exist_ok=False)  # a conversation is its owner's alone
        with contextlib.ExitStack() as undo:
            undo.callback(self.path.unlink)
            file = undo.enter_context(open_locked(self.path))
            write_at_end(file, _encode(self.opening))
            sync_folder(self.path)
            undo.pop_all()
        return file


class SavedChats:
    """The conversations in a state folder, of which the last `keep_chats` are kept."""

    def __init__(self, config: Config) -> None:
        self.folder = config.state_dir / "chats"
        self._most = config.keep_chats

    def list(self) -> list[Path]:
        """The files of the conversations, the one that was used last first. Raises StoreError."""
        found = []
        try:
            for path in self.folder.glob(f"*{_SUFFIX}"):
                state = path.stat()
                if state.st_size:
                    found.append((state.st_mtime_ns, path))
        except OSError as error:
            raise _explain(self.folder, "read", error) from error
        return [path for _, path in sorted(found, reverse=True)]

    def find(self, given: str | None) -> Path:
        """The file of the conversation whose id begins with `given`. None finds the last one used.

        Raises NotFound, RequestError for several, and StoreError.
        """
        paths = {path.stem: path for path in self.list()}
        if given is not None:
            return paths[choose_id(given, paths, "conversation", "flashedge chat --list")]
        if not paths:
            raise NotFound("there is no conversation yet", hint="begin one: flashedge chat")
        return next(iter(paths.values()))

    def start(self, opening: Opening) -> SavedChat:
        """Begin a conversation, and remove the oldest ones above `keep_chats` that no running
        `chat` holds. Raises StoreError."""
        for path in self.list()[max(self._most - 1, 0) :]:
            with contextlib.suppress(Conflict, OSError), open_locked(path):
                path.unlink()
        return SavedChat(self.folder / f"{secrets.token_hex(3)}{_SUFFIX}", opening)


def read_chat(path: Path) -> tuple[Opening, list[Turn], int]:
    """(what the turns share, the turns, the length of all whole lines in bytes). Raises ConfigError
    naming a damaged line, and StoreError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _explain(path, "read", error) from error
    whole = data[: data.rfind(b"\n") + 1]
    opening, turns = None, []
    for number, line in enumerate(whole.split(b"\n")[:-1], start=1):
        try:
            if opening is None:
                opening = _parse(Opening, json.loads(line))
            else:
                turns.append(_parse(Turn, json.loads(line)))
        except (ValueError, TypeError, RecursionError) as error:
            hint = "remove the line" if number > 1 else "remove the file"
            raise ConfigError(f"{path}, line {number} is damaged", hint=hint) from error
    if opening is None:
        raise ConfigError(f"{path} holds no whole line", hint="remove the file")
    return opening, turns, len(whole)


def _parse(kind: type[K], given: Any) -> K:
    """Build `kind` from a line. Raises TypeError if a field is missing or has a wrong type."""
    made = kind(**{field.name: given[field.name] for field in fields(kind) if field.name in given})
    for name, value in asdict(made).items():
        is_missing = value is None and name in _OPTIONAL
        if not is_missing and not isinstance(value, int | float if name == "at" else str):
            raise TypeError(name)
    return made


def _encode(part: Opening | Turn) -> bytes:
    return format_json(asdict(part)).encode() + b"\n"


def _explain(path: Path, what: str, error: OSError) -> StoreError:
    return StoreError(f"can't {what} {path}: {error.strerror or error}")
