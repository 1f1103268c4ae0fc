"""The names that settings had before they were grouped. The next version will not read them."""

import warnings
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from flashedge.config_field import Setting
from flashedge.optimizations import FEATURES

_TABLES = ("clusters", "scheduling")
"""Former tables of config.toml. The table's name now begins the name of each setting in them."""
_TOP = {"fused_sampling", "async_scheduling", "second_runner", "verifier_graphs", "steady_prompts"}
"""Features whose old names stood in no table."""
_OLD_FEATURES = {name if name in _TOP else f"scheduling_{name}": name for name in FEATURES}
OLD_SETTINGS: Mapping[str, Setting] = {
    **{name: Setting(name=name, kind="boolean") for name in _OLD_FEATURES},
    **{
        f"{engine}_{name}": Setting(name=f"{engine}_{name}", kind=kind, at_least=at_least)
        for engine in ("generator", "verifier")
        for name, kind, at_least in (("kv_bytes", "size", 1 << 20), ("devices", "cards", None))
    },
}


class OldSetting(FutureWarning):
    """A setting is given by an old name."""


def find_new_name(old: str) -> str:
    """The setting that holds the value of an old one now."""
    return "features" if old in _OLD_FEATURES else old.partition("_")[2]


def translate(key: str, value: object, source: str, before: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the name of the setting that replaces an old one, and its value in `before` with the
    part that the old one sets. before: all values by name. Raises ConfigError."""
    parsed, name = OLD_SETTINGS[key].parse(value, source), find_new_name(key)
    if key in _OLD_FEATURES:
        return name, before[name].change({_OLD_FEATURES[key]: parsed})
    return name, before[name]._replace(**{key.partition("_")[0]: parsed})


def flatten_tables(file: Mapping[str, Any], path: Path, known: Container[str]) -> dict[str, Any]:
    """The settings in config.toml, with a warning for each in a former table: `model` of the table
    [clusters] is `clusters_model`. known: the names of settings."""
    found: dict[str, Any] = {}
    for key, value in file.items():
        if key not in _TABLES or not isinstance(value, dict):
            found[key] = value
            continue
        for inner, given in value.items():
            name = f"{key}_{inner}"
            found[name] = given
            if name in known:
                warn(f"{inner} of [{key}]", str(path), name)
    return found


def remove_old(document: Any, name: str) -> bool:
    """Remove the old spellings of a setting from a TOML document. Returns whether it had any."""
    names = [name, *(old for old in OLD_SETTINGS if find_new_name(old) == name)]
    found = False
    for old in names:
        if old != name:
            found |= document.pop(old, None) is not None
        table, _, key = old.partition("_")
        if table in _TABLES and isinstance(document.get(table), dict):
            found |= document[table].pop(key, None) is not None
            if not document[table]:
                document.pop(table)
    return found


def warn(old: str, source: str, new: str) -> None:
    warnings.warn(f"{old} in {source} is an old name; write {new}", OldSetting, stacklevel=2)
