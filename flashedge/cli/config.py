"""`config show|path|set`: the settings of the daemon and its clients, and where they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flashedge.cli import output
from flashedge.config import (
    SettingValue,
    list_settings,
    load_config,
    trace_settings,
    unknown_key,
)
from flashedge.errors import ConfigError
from flashedge.settings import Setting
from flashedge.sizes import format_size

EPILOG = """\
Examples:
  flashedge config set port 8700
  flashedge config set scheduling.speculation false
  flashedge config set generator_kv_bytes 512MiB
"""
app = typer.Typer(help="Show and change the settings.", no_args_is_help=True, epilog=EPILOG)


def complete_key(incomplete: str) -> list[str]:
    return [s.name for s in _settable() if s.name.startswith(incomplete)]


@app.command(name="show")
def show(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show every setting, its value and where the value comes from.

    The source is default, environment (a FLASHEDGE_... variable) or the path of config.toml.
    """
    values = trace_settings()
    if as_json:
        output.print_json([_describe(s, values[s.name]) for s in list_settings()])
        return
    rows = [
        (s.name, _format_value(s, values[s.name].value), _name_source(values[s.name]))
        for s in list_settings()
    ]
    output.print_table(("setting", "value", "source"), rows, "no settings")
    output.note("What a setting means: flashedge config show --json")


@app.command(name="path")
def path() -> None:
    """Print the path of config.toml, whether or not it exists."""
    print(load_config().config_file)


@app.command(name="set", epilog=EPILOG)
def set_value(
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help="A setting, as `config show` names it.",
            autocompletion=complete_key,
        ),
    ],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Its new value.")],
) -> None:
    """Write one setting to config.toml. A running daemon uses it after its next start."""
    setting = find_setting(key)
    file = load_config().config_file
    parsed = setting.parse(value, "the command")
    write_setting(file, setting, _to_toml(setting, value, parsed))
    shown = _format_value(setting, parsed)
    print(f"{setting.name} = {shown} in {file}")
    source = trace_settings()[setting.name].source
    if source != str(file):
        output.warn(f"{setting.variable} is set in the environment and overrides the file.")


def find_setting(key: str) -> Setting:
    """The setting that `port`, `scheduling_speculation` or `scheduling.speculation` names.

    Raises ConfigError.
    """
    name = key.replace(".", "_", 1)
    for setting in _settable():
        if name == setting.name:
            return setting
    raise unknown_key(key, "the command", [s.name for s in _settable()])


def write_setting(file: Path, setting: Setting, value: object) -> None:
    """Set one key of the TOML file and keep everything else, comments included.

    Raises ConfigError when the file is not valid TOML or can't be written.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        old = file.read_text(encoding="utf-8") if file.exists() else ""
        document: Any = tomlkit.parse(old)
        table = document
        if setting.table is not None and setting.name not in document:
            table = document.setdefault(setting.table, tomlkit.table())
        table[setting.key if table is not document else setting.name] = value
        file = file.resolve()  # a link stays a link
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(".toml.new")
        new.touch(mode=0o600)  # it may hold a key
        new.write_text(tomlkit.dumps(document), encoding="utf-8")
        new.replace(file)
    except TOMLKitError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"can't write {file}: {error.strerror}") from error


def _settable() -> list[Setting]:
    return [s for s in list_settings() if s.is_in_file]


def _to_toml(setting: Setting, text: str, parsed: object) -> object:
    """The value as the file holds it: a size stays as the user wrote it, a path is a string."""
    if setting.kind == "size":
        return text
    if isinstance(parsed, tuple):
        return ",".join(parsed)
    return str(parsed) if isinstance(parsed, Path) else parsed


def _format_value(setting: Setting, value: object) -> str:
    if value is None:
        return "not set"
    if setting.is_secret:
        return "(hidden)"
    if isinstance(value, bool):
        return str(value).lower()
    if setting.kind == "size" and isinstance(value, int):
        return format_size(value)
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _name_source(found: SettingValue) -> str:
    return {"the defaults": "default", "the environment": "environment"}.get(
        found.source, found.source
    )


def _describe(setting: Setting, found: SettingValue) -> dict[str, Any]:
    hidden = setting.is_secret and found.value is not None
    return {
        "name": setting.name,
        "value": "(hidden)" if hidden else _to_json(found.value),
        "source": _name_source(found),
        "default": _to_json(setting.default),
        "variable": setting.variable,
        "description": setting.description,
    }


def _to_json(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
