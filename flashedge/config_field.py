"""What one field of `Config` is: its name, its type, its limits, and what users read about it.

The settings themselves are the fields of `flashedge.config.Config`.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashedge.errors import ConfigError
from flashedge.sizes import format_size, parse_size

PREFIX = "FLASHEDGE_"
TABLES = ("clusters", "scheduling")
"""Tables of config.toml. A field whose name begins with one of them is a key of that table."""

_BOOLEANS = {"true": True, "false": False}
_KINDS: dict[Any, str] = {
    Path: "folder",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    tuple[str, ...]: "cards",
}
_ENDS = {"_bytes": "size", "_origins": "origins"}
"""Kinds that the end of a setting's name tells."""
_CARD = re.compile(r"\d+|(GPU|MIG)-[\w/-]+")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s,*@]+")
_EXPECTED = {
    "folder": "a folder",
    "string": "a string",
    "boolean": "true or false",
    "integer": "an integer",
    "number": "a number",
    "size": 'a size such as "512MiB"',
    "cards": "different cards: numbers such as 0 or 0,1, or ids of `nvidia-smi -L`",
    "origins": "origins such as http://localhost:3000, without a path, with commas between them",
}


def setting(
    default: object,
    description: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    choices: tuple[str, ...] = (),
    is_secret: bool = False,
) -> Any:
    """A field of `Config` and what `Setting` says about it.

    `default` is `dataclasses.MISSING` where the value depends on the platform.
    """
    metadata = {
        "description": description,
        "at_least": at_least,
        "at_most": at_most,
        "choices": choices,
        "is_secret": is_secret,
    }
    field: Any = dataclasses.field
    return field(default=default, repr=not is_secret, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting as users see it."""

    name: str
    """The field of `Config`, such as "clusters_model"."""

    kind: str
    """"folder", "string", "boolean", "integer", "number", "size" (bytes, such as "512MiB"), "cards"
    (as in CUDA_VISIBLE_DEVICES, such as "0,1") or "origins" (of web pages)."""

    default: Any
    """None means "not set"; folders follow the platform."""

    description: str
    at_least: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] = ()
    is_secret: bool = False
    """Whether the value must not be printed."""

    @property
    def table(self) -> str | None:
        """The table of config.toml that holds the key; None for the top of the file."""
        return next((t for t in TABLES if self.name.startswith(f"{t}_")), None)

    @property
    def key(self) -> str:
        """The key in its table of config.toml, such as "model" in [clusters]."""
        return self.name.removeprefix(f"{self.table}_") if self.table else self.name

    @property
    def variable(self) -> str:
        """The environment variable."""
        return PREFIX + self.name.upper()

    @property
    def is_in_file(self) -> bool:
        """Whether config.toml may hold it. The file can't move its own folder."""
        return self.name != "config_dir"

    def parse(self, value: object, source: str) -> Any:
        """`value` in the setting's type. `source` is where it stands, for the error's text.

        Raises ConfigError naming the setting.
        """
        parsed = self._convert(value)
        if parsed is None:
            expected = _EXPECTED[self.kind]
        elif self.is_secret and not (parsed and parsed.isascii() and parsed.isprintable()):
            expected = "one or more printable ASCII characters"
        elif self.at_least is not None and not parsed >= self.at_least:
            expected = f"at least {self._format(self.at_least)}"
        elif self.at_most is not None and not parsed <= self.at_most:
            expected = f"at most {self._format(self.at_most)}"
        elif self.choices and parsed not in self.choices:
            expected = f"one of {', '.join(self.choices)}"
        else:
            return parsed
        place = f"{self.name} is {value!r} in {source}"
        if self.is_secret:
            place = f"{self.name} in {source} can't be used"
        raise ConfigError(f"{place}; it must be {expected}", param=self.name)

    def _format(self, limit: float) -> str:
        return format_size(limit) if self.kind == "size" else f"{limit:g}"

    def _convert(self, value: object) -> Any:
        """`value` in the setting's type, or None when it has another."""
        if isinstance(value, bool) and self.kind != "boolean":
            return None
        text = value.strip() if isinstance(value, str) else None
        match self.kind:
            case "folder" if isinstance(value, str | Path) and str(value):
                return Path(value).expanduser().absolute()
            case "string" if isinstance(value, str):
                return text if self.is_secret else value  # HTTP strips spaces around a key
            case "boolean":
                return value if isinstance(value, bool) else _BOOLEANS.get((text or "").lower())
            case "integer" | "size" if isinstance(value, int):
                return value
            case "integer" if text is not None:
                return _parse_integer(text)
            case "size" if text is not None:
                return parse_size(text)
            case "number" if isinstance(value, int | float | str):
                return _parse_number(value)
            case "cards" if isinstance(value, int | str | list | tuple):
                return _parse_cards(value)
            case "origins" if isinstance(value, str | list | tuple):
                return _parse_origins(value)
        return None


def describe_field(field: dataclasses.Field[Any], hint: Any) -> Setting:
    """The setting that a field of `Config` with type `hint` is."""
    types_ = [t for t in typing.get_args(hint) if t is not types.NoneType] or [hint]
    return Setting(
        name=field.name,
        kind=next((k for end, k in _ENDS.items() if field.name.endswith(end)), _KINDS[types_[0]]),
        default=None if field.default is dataclasses.MISSING else field.default,
        **field.metadata,
    )


def _parse_integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _parse_cards(value: int | str | list[object] | tuple[object, ...]) -> tuple[str, ...] | None:
    """One card, several with commas between them, or a list. None where one is named twice."""
    entries = value.split(",") if isinstance(value, str) else value
    listed = [entries] if isinstance(entries, int) else entries
    names = tuple(str(entry).strip() for entry in listed)
    valid = all(_CARD.fullmatch(name) for name in names) and len(set(names)) == len(names)
    return names if names and valid else None


def _parse_origins(value: str | Iterable[object]) -> tuple[str, ...] | None:
    entries = value.split(",") if isinstance(value, str) else value
    origins = tuple(str(entry).strip().lower().removesuffix("/") for entry in entries)
    return origins if all(_ORIGIN.fullmatch(origin) for origin in origins) else None


def _parse_number(value: int | float | str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
