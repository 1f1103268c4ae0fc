"""What is kept of a problem that was solved in one way: a line of JSON, written when it is over.

A vote, a weighted vote and best-of-n choose among whole answers that are drawn independently, and
the i-th of them depends on the seed and on i alone. So one set of samples serves all three, and its
first n are what n paths would have drawn (but for kernels whose results depend on the batch).
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from flashedge.cli import output
from flashedge.errors import ConfigError, RequestError
from flashedge.files.journal import open_locked, translate_os_errors, write_at_end
from flashedge.search.catalog import parse_strategy

GREEDY, SAMPLES = "greedy", "samples"
VOTE, WEIGHTED, BEST = "vote", "weighted", "best_of_n"
SAMPLED = (VOTE, WEIGHTED, BEST)
"""The ways that choose among independent answers."""


class Way(NamedTuple):
    """A way of solving a problem: a strategy, or how an answer is chosen among samples."""

    name: str
    n: int

    def __str__(self) -> str:
        return self.name if self.name == GREEDY else f"{self.name}-{self.n}"

    @classmethod
    def parse(cls, text: str) -> "Way":
        """Read "beam-16". Raises NotFound for an unknown strategy, RequestError without n."""
        name, n = parse_strategy(text, (GREEDY, SAMPLES, VOTE, WEIGHTED))
        if name == GREEDY:
            return cls(GREEDY, 1)
        if n is None:
            raise RequestError(f"{text} has no number of paths", hint=f"for example {text}-16")
        return cls(name, n)


def parse_ways(text: str) -> tuple[Way, ...]:
    """Read "greedy,vote-16". Raises what `Way.parse` does."""
    return tuple(dict.fromkeys(Way.parse(each.strip()) for each in text.split(",")))


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedPath:
    """A finished path, as the run's result describes it."""

    answer: str | None
    """Equal answers to one problem are spelled alike."""
    right: bool
    score: float | None
    """The aggregate of `scores`. None where nothing was scored."""
    scores: tuple[float, ...]
    """(num_steps,) in [0, 1]."""
    tokens: int
    finish: str
    """The reason for its end: see `FinishReason`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One problem, solved in one way. All counts of tokens are of the whole run."""

    pair: Mapping[str, Any]
    """Its name, the fingerprint of its models, and what its runs were asked with. The same in all
    records of a table."""
    file: str
    """The name of the problem's file, without its ending."""
    place: int
    """Its place in the fixed order of the file's problems, from 0."""
    problem: str
    """A digest of its text."""
    id: str | int
    """Its id in the file."""
    way: str
    alone: bool
    """Whether nothing else ran meanwhile, so that `seconds` are those of a run by itself."""
    known: str
    """The right answer."""
    machine: Mapping[str, str]
    """The hardware, and the versions of the code (`scripts.card.machine`)."""
    answer: str | None = None
    right: bool = False
    paths: tuple[FinishedPath, ...] = ()
    """In the order in which they were started."""
    tree_tokens: int = 0
    """Committed by the generator."""
    wasted_tokens: int = 0
    """Drafted by the generator and dropped."""
    verifier_tokens: int = 0
    """Of the requests to the verifier, those included whose KV it reused."""
    verifier_cached_tokens: int = 0
    seconds: float = 0.0
    """Without the queue."""
    error: str | None = None
    """Why the run failed, which counts as a wrong answer until a later call tries again with more
    luck. None if it finished."""

    @property
    def key(self) -> tuple[str, str, str, bool]:
        return self.file, self.problem, self.way, self.alone

    @property
    def computed_tokens(self) -> int:
        """Of the verifier."""
        return self.verifier_tokens - self.verifier_cached_tokens

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Record":
        """Raises KeyError, TypeError."""
        paths = tuple(
            FinishedPath(**{**path, "scores": tuple(path["scores"])}) for path in data["paths"]
        )
        return cls(**{**data, "paths": paths})


def read_records(files: Iterable[Path]) -> list[Record]:
    """Read the records of one pair. Leaves out damaged lines, with a message, and all but the last
    of repeated records. Raises ConfigError where they are of two pairs, or of one that was asked in
    two ways."""
    found: dict[Any, Record] = {}
    first: tuple[Path, Record] | None = None
    for file in files:
        for number, line in enumerate(file.read_bytes().splitlines(), start=1):
            try:
                record = Record.from_json(json.loads(line))
            except (ValueError, KeyError, TypeError):
                output.warn(f"{file}, line {number} is damaged and was left out")
                continue
            first = first or (file, record)
            check_same_pair(f"{file}, line {number}", record.pair, str(first[0]), first[1].pair)
            found[record.key] = record
    return list(found.values())


def check_same_pair(
    here: str, pair: Mapping[str, Any], there: str, other: Mapping[str, Any]
) -> None:
    """Raises ConfigError, which names what differs."""
    for name in {*pair, *other}:
        if pair.get(name) != other.get(name):
            raise ConfigError(
                f"{here} has {name} {pair.get(name)!r}, but {there} has {other.get(name)!r}",
                hint="a table is of one pair with one set of options: give each its own --output",
            )


class RecordFile:
    """Appends records to a file, for one process at a time. Use `close`."""

    def __init__(self, path: Path, pair: Mapping[str, Any]) -> None:
        """Raises Conflict if another process writes it, ConfigError if it is of another pair,
        StoreError."""
        self.path = path
        with translate_os_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open_locked(path)
            if (size := path.stat().st_size) and os.pread(
                self._file.fileno(), 1, size - 1
            ) != b"\n":
                write_at_end(self._file, b"\n")  # what a crash cut off counts as a damaged line
        self.records = read_records([path])
        if self.records:
            check_same_pair("this run", pair, str(path), self.records[0].pair)

    def append(self, record: Record) -> None:
        """Raises StoreError."""
        with translate_os_errors(self.path):
            write_at_end(self._file, json.dumps(asdict(record)).encode() + b"\n")
        self.records.append(record)

    def close(self) -> None:
        self._file.close()


def find_samples(records: Sequence[Record]) -> dict[tuple[str, int], Record]:
    """The largest set of samples of each problem, by file and place. One that failed counts where
    no other is."""

    def rank(record: Record) -> tuple[bool, int]:
        return record.error is None, Way.parse(record.way).n

    found: dict[tuple[str, int], Record] = {}
    for record in records:
        at = record.file, record.place
        if Way.parse(record.way).name == SAMPLES:
            found[at] = max(found.get(at, record), record, key=rank)
    return found
