"""`config show|path|set|unset`: the settings and their sources."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer import Argument

from flashedge.cli import output
from flashedge.cli.output import Json
from flashedge.config import SettingValue, find_nearest, list_settings, load_config, trace_settings
from flashedge.config_field import Setting
from flashedge.errors import ConfigError
from flashedge.optimizations import FEATURES, Features

EPILOG = """\
Examples:
  flashedge config set port 8700
  flashedge config set features speculation=off
  flashedge config set kv_bytes 8GiB,4GiB
  flashedge config unset idle_timeout_s
"""
app = typer.Typer(help="Show and change the settings.", no_args_is_help=True, epilog=EPILOG)


def complete_key(incomplete: str) -> list[str]:
    return [s.name for s in _list_settable() if s.name.startswith(incomplete)]


T = TypeVar("T")
Key = Annotated[
    str,
    Argument(metavar="KEY", help="A name that `config show` lists.", autocompletion=complete_key),
]


@app.command(name="show")
def show(
    key: Annotated[
        str | None,
        Argument(
            metavar="[KEY]",
            help="Explain this setting. Without KEY all are listed.",
            autocompletion=complete_key,
        ),
    ] = None,
    as_json: Json = False,
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
    output.print_table(("setting", "value", "source"), rows, "")
    output.note("What a setting means: flashedge config show KEY")


def _explain(setting: Setting, found: SettingValue) -> None:
    lines = [
        f"{setting.name} = {_format_value(setting, found.value)} ({_name_source(found)})",
        setting.description,
        f"default: {_format_value(setting, setting.default)}",
    ]
    if setting.choices:
        lines.append(f"choices: {', '.join(setting.choices)}")
    lines.append(f"in config.toml: {setting.name}; in the environment: {setting.variable}")
    output.say("\n".join(lines))
    if isinstance(found.value, Features):
        words = {None: "auto", True: "on", False: "off"}
        rows = [
            (name, words[getattr(found.value, name)], field.metadata["description"])
            for name, field in FEATURES.items()
        ]
        output.say()
        output.print_table(("feature", "now", "meaning"), rows, "")


@app.command(name="path")
def path() -> None:
    """Print the path of config.toml, whether or not it exists."""
    output.print_data(str(load_config().config_file))


@app.command(name="set", epilog=EPILOG)
def set_value(
    key: Key, value: Annotated[str, Argument(metavar="VALUE", help="Its new value.")]
) -> None:
    """Write one setting to config.toml. A running daemon must be restarted to use it."""
    setting = find_setting(key)
    file = load_config().config_file
    if not value.strip():
        raise ConfigError(
            f"there is no value for {setting.name}",
            hint=f"to remove it from config.toml: flashedge config unset {setting.name}",
            param=setting.name,
        )
    parsed = setting.parse(value, "the command")
    kept: object = setting.write(parsed)
    if setting.kind in ("size", "features") or kept is None:  # None is "auto"
        kept = value  # as the user wrote it
    elif isinstance(parsed, bool | int | float):
        kept = parsed
    edit_file(file, lambda document: document.__setitem__(setting.name, kept))
    output.say(f"{setting.name} = {_format_value(setting, parsed)} in {file}")
    if trace_settings()[setting.name].source != str(file):
        output.warn(f"{setting.variable} is set in the environment and overrides the file.")


@app.command(name="unset", epilog=EPILOG)
def unset_value(key: Key) -> None:
    """Remove one setting from config.toml. A running daemon must be restarted to notice."""
    setting = find_setting(key)
    file = load_config().config_file
    if not file.exists() or edit_file(file, lambda found: found.pop(setting.name, None)) is None:
        output.note(f"{setting.name} was not set in {file}")
        return
    now = trace_settings()[setting.name]
    shown = _format_value(setting, now.value)
    output.say(f"{setting.name} removed from {file}; now {shown} ({_name_source(now)})")


def find_setting(key: str) -> Setting:
    """Find a setting by its name. Raises ConfigError."""
    settings = {s.name: s for s in _list_settable()}
    if key in settings:
        return settings[key]
    close = find_nearest(key, settings)
    hint = f"did you mean {close}?" if close else "list them: flashedge config show"
    raise ConfigError(f"there is no setting {key!r}", hint=hint, param=key)


def edit_file(file: Path, change: Callable[[Any], T]) -> T:
    """Change the document in a TOML file, and return what `change` returns. Comments stay.

    Raises ConfigError when the file is not valid TOML, or can't be read or written.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        old = file.read_text(encoding="utf-8") if file.exists() else ""
        document: Any = tomlkit.parse(old)
        changed = change(document)
        file = file.resolve()  # a link stays a link
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(".toml.new")
        new.unlink(missing_ok=True)
        new.touch(mode=0o600)  # it may hold a key
        new.write_text(tomlkit.dumps(document), encoding="utf-8")
        new.replace(file)
        return changed
    except TOMLKitError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error
    except UnicodeEncodeError as error:
        raise ConfigError(f"can't write {file}: the value is not UTF-8 text") from error
    except OSError as error:
        raise ConfigError(f"can't write {file}: {error.strerror}") from error


def _list_settable() -> list[Setting]:
    return [s for s in list_settings() if s.is_in_file]


def _format_value(setting: Setting, value: Any) -> str:
    if setting.is_secret and value is not None:
        return "(hidden)"
    return setting.write(value) or "not set"


def _name_source(found: SettingValue) -> str:
    names = {"the defaults": "default", "the environment": "environment"}
    return names.get(found.source, found.source)


def _describe(setting: Setting, found: SettingValue) -> dict[str, Any]:
    def convert(value: Any) -> Any:
        if isinstance(value, Features):
            return value.list_changes()
        return str(value) if isinstance(value, Path) else value

    hidden = setting.is_secret and found.value is not None
    return {
        "name": setting.name,
        "value": "(hidden)" if hidden else convert(found.value),
        "source": _name_source(found),
        "default": convert(setting.default),
        "variable": setting.variable,
        "description": setting.description,
    }
