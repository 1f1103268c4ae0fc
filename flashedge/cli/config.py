"""`config show|path|set|unset`: the settings of the daemon and its clients, and their sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from flashedge.cli import output
from flashedge.config import (
    SettingValue,
    find_nearest,
    list_settings,
    load_config,
    trace_settings,
)
from flashedge.config_field import Setting
from flashedge.errors import ConfigError
from flashedge.sizes import format_size

EPILOG = """\
Examples:
  flashedge config set port 8700
  flashedge config set scheduling_speculation false
  flashedge config set generator_kv_bytes 512MiB
  flashedge config unset idle_timeout_s
"""
app = typer.Typer(help="Show and change the settings.", no_args_is_help=True, epilog=EPILOG)


def complete_key(incomplete: str) -> list[str]:
    return [s.name for s in _settable() if s.name.startswith(incomplete)]


Key = Annotated[
    str,
    typer.Argument(
        metavar="KEY",
        help="A setting, as `config show` lists it.",
        autocompletion=complete_key,
    ),
]


@app.command(name="show")
def show(
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="[KEY]",
            help="One setting, to be told what it means. Left out: all.",
            autocompletion=complete_key,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the settings, their values and where each value comes from.

    The source is default, environment (a FLASHEDGE_... variable) or the path of config.toml.
    """
    values = trace_settings()
    one = None if key is None else find_setting(key)
    if as_json:
        settings = list_settings() if one is None else [one]
        output.print_json([_describe(s, values[s.name]) for s in settings])
        return
    if one is not None:
        _explain(one, values[one.name])
        return
    rows = [
        (s.name, _format_value(s, values[s.name].value), _name_source(values[s.name]))
        for s in list_settings()
    ]
    output.print_table(("setting", "value", "source"), rows, "no settings")
    output.note("What a setting means: flashedge config show KEY")


def _explain(setting: Setting, found: SettingValue) -> None:
    """Print what one setting means."""
    table = f"[{setting.table}] {setting.key}" if setting.table else setting.key
    lines = [
        f"{setting.name} = {_format_value(setting, found.value)} ({_name_source(found)})",
        setting.description,
        f"default: {_format_value(setting, setting.default)}",
    ]
    if setting.choices:
        lines.append(f"choices: {', '.join(setting.choices)}")
    lines.append(f"in config.toml: {table}; in the environment: {setting.variable}")
    output.say("\n".join(lines))


@app.command(name="path")
def path() -> None:
    """Print the path of config.toml, whether or not it exists."""
    output.print_data(str(load_config().config_file))


@app.command(name="set", epilog=EPILOG)
def set_value(
    key: Key,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Its new value.")],
) -> None:
    """Write one setting to config.toml. A running daemon uses it after its next start."""
    setting = find_setting(key)
    file = load_config().config_file
    if not value.strip():
        raise ConfigError(
            f"there is no value for {setting.name}",
            hint=f"to remove it from config.toml: flashedge config unset {setting.name}",
            param=setting.name,
        )
    parsed = setting.parse(value, "the command")
    write_setting(file, setting, _to_toml(setting, value, parsed))
    shown = _format_value(setting, parsed)
    output.say(f"{setting.name} = {shown} in {file}")
    source = trace_settings()[setting.name].source
    if source != str(file):
        output.warn(f"{setting.variable} is set in the environment and overrides the file.")


@app.command(name="unset", epilog=EPILOG)
def unset_value(key: Key) -> None:
    """Remove one setting from config.toml. A running daemon notices after its next start."""
    setting = find_setting(key)
    file = load_config().config_file
    if not remove_setting(file, setting):
        output.note(f"{setting.name} was not set in {file}")
        return
    now = trace_settings()[setting.name]
    shown = _format_value(setting, now.value)
    output.say(f"{setting.name} removed from {file}; now {shown} ({_name_source(now)})")


def find_setting(key: str) -> Setting:
    """The setting that `port` or `scheduling_speculation` names, or `scheduling.speculation`, as
    config.toml divides it. Raises ConfigError.
    """
    name = key.replace(".", "_", 1)
    for setting in _settable():
        if name == setting.name:
            return setting
    close = find_nearest(name, [s.name for s in _settable()])
    hint = f"did you mean {close}?" if close else "list them: flashedge config show"
    raise ConfigError(f"there is no setting {key!r}", hint=hint, param=key)


def write_setting(file: Path, setting: Setting, value: object) -> None:
    """Set one key of the TOML file. Raises ConfigError like `_edit_file`."""
    import tomlkit

    def write(document: Any) -> None:
        if setting.table is None or setting.name in document:
            document[setting.name] = value
        else:
            document.setdefault(setting.table, tomlkit.table())[setting.key] = value

    _edit_file(file, write)


def remove_setting(file: Path, setting: Setting) -> bool:
    """Remove one key from the TOML file, and say whether it was there.

    Raises ConfigError like `_edit_file`.
    """
    found = False

    def remove(document: Any) -> None:
        nonlocal found
        tables = [(document, setting.name)]
        if setting.table is not None:
            tables.append((document.get(setting.table, {}), setting.key))
        for table, key in tables:
            found |= table.pop(key, None) is not None

    if file.exists():
        _edit_file(file, remove)
    return found


def _edit_file(file: Path, change: Callable[[Any], None]) -> None:
    """Change the document that the TOML file holds and keep everything else, comments included.

    Raises ConfigError when the file is not valid TOML or can't be written.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        old = file.read_text(encoding="utf-8") if file.exists() else ""
        document: Any = tomlkit.parse(old)
        change(document)
        file = file.resolve()  # a link stays a link
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(".toml.new")
        new.touch(mode=0o600)  # it may hold a key
        new.write_text(tomlkit.dumps(document), encoding="utf-8")
        new.replace(file)
    except TOMLKitError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error
    except UnicodeEncodeError as error:
        raise ConfigError(f"can't write {file}: the value is not UTF-8 text") from error
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
