"""One field of `Config`: its name, its type, its limits, and what users read about it."""

import contextlib
import dataclasses
import math
import re
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from flashedge.errors import ConfigError
from flashedge.optimizations import Features
from flashedge.sizes import format_size, parse_size

T = TypeVar("T")
PREFIX = "FLASHEDGE_"
AUTO = "auto"
"""What users write for an engine whose value is not set."""

_BOOLEANS = {"true": True, "false": False}
_KINDS: dict[Any, str] = {
    Path: "folder",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    tuple[str, ...]: "origins",
    Features: "features",
}
_ENDS = {"_bytes": "size", "devices": "cards"}
"""The kind of a setting by the end of its name. Other kinds follow from the field's type."""
_CARD = re.compile(r"\d+|(GPU|MIG)-[\w/-]+")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s,*@]+")
_EXPECTED = {
    "folder": "a folder",
    "string": "a string",
    "boolean": "true or false",
    "integer": "an integer",
    "number": "a number",
    "size": 'a size such as "512MiB"',
    "cards": "different cards: numbers such as 0 or 0+1, or ids of `nvidia-smi -L`",
    "origins": "origins such as http://localhost:3000, without a path, with commas between them",
    "features": "names with on or off, such as speculation=off,lookahead=on; `flashedge config show"
    " features` lists them",
}
_FOR_BOTH = ", once for both engines or for each as GENERATOR,VERIFIER; auto means not set"


class PerEngine(NamedTuple, Generic[T]):
    """A setting's values for the two engines. On the command line "A,B", or "A" for both."""

    generator: T
    verifier: T


def setting(default: object, description: str, *, is_secret: bool = False, **limits: Any) -> Any:
    """A field of `Config`. limits: `at_least`, `at_most` or `choices` of `Setting`. default:
    `dataclasses.MISSING` where it depends on the platform."""
    metadata = {"description": description, "is_secret": is_secret, **limits}
    field: Any = dataclasses.field
    return field(default=default, repr=not is_secret, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting as users see it."""

    name: str
    """The field of `Config`, and the key in config.toml, such as "clusters_model"."""
    kind: str
    """A key of `_EXPECTED`."""
    default: Any = None
    """None means not set. For folders, it means that the platform decides."""
    description: str = ""
    is_per_engine: bool = False
    """Whether it has a value for each engine."""
    at_least: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] = ()
    is_secret: bool = False
    """Whether the value must not be printed."""

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def is_in_file(self) -> bool:
        """Whether config.toml may hold it. The file can't move its own folder."""
        return self.name != "config_dir"

    def parse(self, value: object, source: str, onto: Any = None) -> Any:
        """`value` in the setting's type. source: where it stands, for the error's text.

        onto: the features that `value` changes. None means the defaults.
        Raises ConfigError naming the setting.
        """
        try:
            return self._read_each(value) if self.is_per_engine else self._read(value, onto)
        except ValueError as expected:
            place = f"{self.name} is {value!r} in {source}"
            if self.is_secret:
                place = f"{self.name} in {source} can't be used"
            raise ConfigError(f"{place}; it must be {expected}", param=self.name) from None

    def _read_each(self, value: object) -> PerEngine[Any]:
        parts = value.split(",") if isinstance(value, str) else value
        parts = parts if isinstance(parts, list | tuple) else [parts]
        try:
            found = [
                None if part is None or str(part).strip() == AUTO else self._read(part)
                for part in parts
            ]
            if len(found) not in (1, 2):
                raise ValueError(_EXPECTED[self.kind])
        except ValueError as expected:
            raise ValueError(f"{expected}{_FOR_BOTH}") from None
        return PerEngine(found[0], found[-1])

    def _read(self, value: object, onto: Any = None) -> Any:
        """The value in the setting's type. Raises ValueError with what it must be."""
        parsed = self._convert(value, onto)
        if parsed is None:
            raise ValueError(_EXPECTED[self.kind])
        if self.is_secret and not (parsed and parsed.isascii() and parsed.isprintable()):
            raise ValueError("one or more printable ASCII characters")
        if self.at_least is not None and not parsed >= self.at_least:
            raise ValueError(f"at least {self._format(self.at_least)}")
        if self.at_most is not None and not parsed <= self.at_most:
            raise ValueError(f"at most {self._format(self.at_most)}")
        if self.choices and parsed not in self.choices:
            raise ValueError(f"one of {', '.join(self.choices)}")
        return parsed

    def write(self, value: Any) -> str | None:
        """`value` as users write it. None means that it is not set."""
        if self.is_per_engine:
            each = [self._write_one(one) or AUTO for one in value]
            return None if each == [AUTO, AUTO] else ",".join(each)
        return self._write_one(value) or None

    def _write_one(self, value: Any) -> str | None:
        if value is None:
            return None
        if self.kind == "size":
            return f"{value >> 20}MiB" if value % (1 << 20) == 0 else str(value)
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, tuple):
            return ("+" if self.kind == "cards" else ",").join(value)
        return str(value)

    def _format(self, limit: float) -> str:
        return format_size(limit) if self.kind == "size" else f"{limit:g}"

    def _convert(self, value: object, onto: Any) -> Any:
        """`value` in the setting's type, or None if it can't be one."""
        if isinstance(value, bool) and self.kind != "boolean":
            return None
        text = value.strip() if isinstance(value, str) else None
        match self.kind:
            case "folder" if isinstance(value, str | Path) and str(value):
                with contextlib.suppress(RuntimeError):  # there is no such user
                    return Path(value).expanduser().absolute()
            case "string" if isinstance(value, str):
                return text if self.is_secret else value  # HTTP strips spaces around a key
            case "boolean":
                return value if isinstance(value, bool) else _BOOLEANS.get((text or "").lower())
            case "integer" | "size" if isinstance(value, int):
                return value
            case "integer" if text is not None:
                with contextlib.suppress(ValueError):
                    return int(text)
            case "size" if text is not None:
                return parse_size(text)
            case "number" if isinstance(value, int | float | str):
                with contextlib.suppress(ValueError, OverflowError):
                    number = float(value)
                    return number if math.isfinite(number) else None
            case "cards" if isinstance(value, int | str | list | tuple):
                return _parse_cards(value)
            case "origins" if isinstance(value, str | list | tuple):
                return _parse_origins(value)
            case "features":
                return (onto or self.default).change(value)
        return None


def describe_field(field: dataclasses.Field[Any], hint: Any) -> Setting:
    """The setting of a field of `Config`. hint: the field's type."""
    is_per_engine = typing.get_origin(hint) is PerEngine
    if is_per_engine:
        [hint] = typing.get_args(hint)
    types_ = [t for t in typing.get_args(hint) if t is not types.NoneType] or [hint]
    return Setting(
        name=field.name,
        kind=next((k for end, k in _ENDS.items() if field.name.endswith(end)), _KINDS[types_[0]]),
        default=None if field.default is dataclasses.MISSING else field.default,
        is_per_engine=is_per_engine,
        **field.metadata,
    )


def _parse_cards(value: int | str | list[object] | tuple[object, ...]) -> tuple[str, ...] | None:
    """One card, several with + between them, or a list. None if one is wrong or named twice."""
    entries = re.split("[+,]", value) if isinstance(value, str) else value
    listed = [entries] if isinstance(entries, int) else entries
    names = tuple(str(entry).strip() for entry in listed)
    valid = all(_CARD.fullmatch(name) for name in names) and len(set(names)) == len(names)
    return names if names and valid else None


def _parse_origins(value: str | Iterable[object]) -> tuple[str, ...] | None:
    """Origins with commas between them, or a list. None if one is wrong."""
    entries = value.split(",") if isinstance(value, str) else value
    origins = tuple(str(entry).strip().lower().removesuffix("/") for entry in entries)
    return origins if all(_ORIGIN.fullmatch(origin) for origin in origins) else None
