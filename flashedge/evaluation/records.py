"""What was measured on each problem, kept in a file so that a second call goes on."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from flashedge.errors import Conflict, StoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What makes two measurements the same: both must agree before one goes on with the other's
    file. models, problems: digests of the pair and of the problem file; n: sizes, ascending."""

    pair: str
    models: str
    problems: str
    n: tuple[int, ...]
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """One sampled solution. answer: equal answers of a problem are spelled alike; scores:
    (num_steps,) in [0, 1]; step_tokens: (num_steps,), empty where not known."""

    text: str
    answer: str | None
    right: bool
    scores: tuple[float, ...] = ()
    step_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemRecord:
    """chains: the samples, as many as the largest n; beams: what beam search chose, by n."""

    index: int
    id: str
    family: str | None
    steps: int | None
    greedy: Chain
    chains: tuple[Chain, ...]
    beams: Mapping[int, Chain]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProblemRecord:
        """The inverse of `to_json`. Raises KeyError, TypeError, ValueError."""
        return cls(
            **{name: data[name] for name in ("index", "id", "family", "steps")},
            greedy=_chain(data["greedy"]),
            chains=tuple(_chain(chain) for chain in data["chains"]),
            beams={int(n): _chain(chain) for n, chain in data["beams"].items()},
        )


def _chain(data: Mapping[str, Any]) -> Chain:
    lists = {name: tuple(data[name]) for name in ("scores", "step_tokens")}
    return Chain(**{**data, **lists})


class RecordFile:
    """JSON lines: the settings, then one record a finished problem. One writer at a time.

    Use as a context manager. A last line that a crash cut off is dropped.
    """

    def __init__(self, path: Path, settings: Settings) -> None:
        """Opens or makes the file. Raises Conflict when it was made with other settings or is
        being written, StoreError when it can't be read or written."""
        self.path = path
        self.records: dict[int, ProblemRecord] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            self._lock()
            self._read(settings)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._file.close()

    def append(self, record: ProblemRecord) -> None:
        """Keep a finished problem. Raises StoreError."""
        self._write(record.to_json())
        self.records[record.index] = record

    # ------------------------------------------------------------ inner

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Conflict(
                f"another evaluation writes {self.path}",
                mend="wait for it, or give another --output",
            ) from error

    def _read(self, settings: Settings) -> None:
        wanted = json.loads(json.dumps(dataclasses.asdict(settings)))
        try:
            self._file.seek(0)
            data = self._file.read()
            whole = data[: data.rfind(b"\n") + 1]
            if len(whole) < len(data):
                self._file.truncate(len(whole))
            lines = [json.loads(line) for line in whole.splitlines()]
            if not lines:
                self._write({"settings": wanted})
                return
            made = lines[0]["settings"]
            found = [ProblemRecord.from_json(line) for line in lines[1:]]
        except OSError as error:
            raise _unusable(self.path, error) from error
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{self.path} is no file of finished problems",
                mend="move it away, or give another --output",
            ) from error
        other = [name for name in wanted if made.get(name) != wanted[name]]
        if other:
            raise Conflict(
                f"{self.path} was made with other settings ({', '.join(other)})",
                mend="give another --output, or delete it to begin again",
            )
        self.records = {record.index: record for record in found}

    def _write(self, line: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _unusable(self.path, error) from error


def _unusable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"can't use {path}: {error.strerror or error}", mend="give another --output")
