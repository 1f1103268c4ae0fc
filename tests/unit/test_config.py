"""Where a setting comes from, and what is said about one that is wrong."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from flashedge.config import Config, list_settings, load_config, trace_settings
from flashedge.errors import ConfigError
from flashedge.optimizations import Features


def load(
    home: Path, file: str = "", env: Mapping[str, str] | None = None, **overrides: object
) -> Config:
    if file:
        (home / "config").mkdir(exist_ok=True)
        (home / "config" / "config.toml").write_text(file)
    return load_config(overrides, {"FLASHEDGE_HOME": str(home), **(env or {})})


def test_defaults(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert (config.host, config.port, config.pair) == ("127.0.0.1", 8642, "bundled")
    folders = (config.state_dir, config.cache_dir, config.config_dir)
    assert folders == tuple(tmp_path / name for name in ("state", "cache", "config"))
    assert (config.config_file.name, config.is_loopback) == ("config.toml", True)
    without_home = load_config({}, {})
    assert without_home.state_dir.name == "flashedge"
    folders = {without_home.state_dir, without_home.cache_dir, without_home.config_dir}
    assert len(folders) == 3


def test_order_is_command_environment_file_default(tmp_path: Path) -> None:
    file = 'port = 1\npair = "file"\nmax_running = 7\nqueue_limit = 3\n'
    env = {"FLASHEDGE_PORT": "2", "FLASHEDGE_PAIR": "env"}
    config = load(tmp_path, file, env, port=3, pair=None)
    assert (config.port, config.pair, config.max_running) == (3, "env", 7)


def test_sizes(tmp_path: Path) -> None:
    sizes = {"512MiB": 512 << 20, "2 GiB": 2 << 30, "2_048 kib": 2 << 20, "1048576": 1 << 20}
    for text, count in {**sizes, 1 << 21: 1 << 21}.items():
        assert load(tmp_path, kv_bytes=text).kv_bytes == (count, count)
        assert load(tmp_path, kv_bytes=(text, None)).kv_bytes == (count, None)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        *(("port", value, "must be an integer") for value in ("many", "80MiB", True, 1.5)),
        ("port", 70000, "at most 65535"),
        ("port", -1, "at least 0"),
        ("max_running", "0", "at least 1"),
        *(("idle_timeout_s", value, "must be a number") for value in ("nan", "inf")),
        ("idle_timeout_s", 10**400, "must be a number"),
        ("idle_timeout_s", "0", "at least 1"),
        ("log_level", "loud", "must be one of debug"),
        ("host", 5, "must be a string"),
        *(("state_dir", value, "must be a folder") for value in ("", "~no-such-user/state")),
        ("kv_bytes", "9" * 5000, 'must be a size such as "512MiB"'),
        ("kv_bytes", "12XiB", 'must be a size such as "512MiB"'),
        ("kv_bytes", "8GiB,64KiB", "at least 1.0 MiB"),
        ("kv_bytes", -1, "at least 1.0 MiB"),
        ("kv_bytes", "1GiB,1GiB,1GiB", "or for each as GENERATOR,VERIFIER"),
        ("devices", "0,1,2", "or for each as GENERATOR,VERIFIER"),
        *(("batch_invariant", value, "must be true or false") for value in (1, "maybe")),
        *(
            ("features", value, "must be names with on or off, such as speculation=off")
            for value in ("speculation=maybe", "speculation", "specluation=off", 2, {"offload": 1})
        ),
        *(
            ("allowed_origins", one, "must be origins such as")
            for one in ("*", "null", "obsidian.md", "http://", "http://a/b", ["http://a", "*"], 5)
        ),
        ("clusters_threshold", 1.5, "at most 1"),
        ("clusters_threshold", -0.1, "at least 0"),
    ],
)
def test_wrong_values(tmp_path: Path, key: str, value: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as e:
        load(tmp_path, **{key: value})
    assert key in str(e.value)
    assert e.value.param == key


def test_origins_are_written_as_browsers_do(tmp_path: Path) -> None:
    found = ("app://obsidian.md", "http://localhost:3000")
    env = {"FLASHEDGE_ALLOWED_ORIGINS": "app://obsidian.md, HTTP://localhost:3000/"}
    assert load(tmp_path, env=env).allowed_origins == found
    file = 'allowed_origins = ["app://obsidian.md", "http://localhost:3000"]\n'
    assert load(tmp_path, file).allowed_origins == found
    assert load(tmp_path, "allowed_origins = []\n").allowed_origins == ()


def test_devices_are_those_of_both_engines_or_of_each(tmp_path: Path) -> None:
    assert load(tmp_path).devices == (None, None)
    for given, generator, verifier in (
        ("1", ("1",), ("1",)),
        ("0+1, 2", ("0", "1"), ("2",)),
        ("auto,GPU-5+1", None, ("GPU-5", "1")),
        ([[0, 1], 2], ("0", "1"), ("2",)),
        (3, ("3",), ("3",)),
    ):
        assert load(tmp_path, devices=given).devices == (generator, verifier)


def test_features_of_all_sources_count_and_the_last_one_wins(tmp_path: Path) -> None:
    default = load(tmp_path).features
    assert default == Features()
    assert str(default) == ""
    file = "[features]\nspeculation = false\nlookahead = true\ngang = false\n"
    env = {"FLASHEDGE_FEATURES": "lookahead=off, async_scheduling=on,gang=On"}
    config = load(tmp_path, file, env, features={"score_once": False})
    assert str(config.features) == "speculation=off,score_once=off,async_scheduling=on"
    assert load(tmp_path / "new", features=str(config.features)).features == config.features


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("max_runing", "did you mean 'max_running'?"),
        ("zzz", "threads_per_engine"),
        ("config_dir", ""),  # the file can't move itself
    ],
)
def test_an_unknown_key_in_the_file(tmp_path: Path, key: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=rf"unknown key '{key}' in .*config.toml") as e:
        load(tmp_path, f"{key} = 3")
    assert hint in str(e.value.hint)
    assert e.value.hint == hint or "did you mean" not in hint


def test_a_file_that_the_system_does_not_open_is_no_traceback() -> None:
    with pytest.raises(ConfigError, match=r"can't read .*config.toml: File name too long"):
        load_config({"config_dir": "x" * 300}, {})


def test_misspelt_variable_is_refused_and_a_stranger_left_alone(tmp_path: Path) -> None:
    load(tmp_path, env={"FLASHEDGE_VENV": "/x", "FLASHEDGE_FAST": "1"})
    assert load(tmp_path, env={"FLASHEDGE_PORT": ""}).port == 8642, "it counts as unset"
    with pytest.raises(ConfigError, match="FLASHEDGE_PROT") as e:
        load(tmp_path, env={"FLASHEDGE_PROT": "1"})
    assert "FLASHEDGE_PORT" in (e.value.hint or "")


def test_the_key_is_not_printed_and_spaces_around_it_do_not_count(tmp_path: Path) -> None:
    config = load(tmp_path, api_key=" sesame\n")
    assert config.api_key == "sesame"
    assert "sesame" not in repr(config)


@pytest.mark.parametrize("key", [" ", "\t", "clé", "se\u200bsame", "ses\name"])
def test_a_key_that_no_request_can_carry_is_refused(tmp_path: Path, key: str) -> None:
    for settings in ({"api_key": key}, {"env": {"FLASHEDGE_API_KEY": key}}):
        with pytest.raises(ConfigError, match=r"api_key in the .* can't be used") as e:
            load(tmp_path, **settings)  # type: ignore[arg-type]
        assert e.value.param == "api_key"
        assert key not in str(e.value) or key == " "


def test_every_setting_says_where_it_is_written_and_what_it_does() -> None:
    settings = {setting.name: setting for setting in list_settings()}
    assert list(settings) == [field.name for field in dataclasses.fields(Config)]
    assert settings["clusters_model"].variable == "FLASHEDGE_CLUSTERS_MODEL"
    assert [name for name in settings if not settings[name].is_in_file] == ["config_dir"]
    for setting in settings.values():
        assert setting.description.endswith(".")
        if setting.default is not None:
            assert setting.parse(setting.default, "the defaults") == setting.default


def test_a_value_says_where_it_comes_from(tmp_path: Path) -> None:
    load(tmp_path, "queue_limit = 3\n")
    env = {"FLASHEDGE_HOME": str(tmp_path), "FLASHEDGE_PAIR": "env"}
    expected = {"port": (3, "the command"), "pair": ("env", "the environment")}
    expected |= {"queue_limit": (3, str(tmp_path / "config" / "config.toml"))}
    expected |= {"max_running": (8, "the defaults")}
    expected |= {"state_dir": (tmp_path / "state", "the environment")}
    assert trace_settings({"port": 3}, env).items() >= expected.items()


def test_loopback(tmp_path: Path) -> None:
    hosts = ("127.0.0.1", "localhost", "::1", "0.0.0.0", "box")
    assert [h for h in hosts if load(tmp_path, host=h).is_loopback] == [*hosts[:3]]


@pytest.mark.parametrize("name", ["FLASHEDGE_HOME", "FLASHEDGE_CONFIG_DIR"])
def test_a_folder_of_nobody_is_refused_and_its_variable_is_the_place(name: str) -> None:
    with pytest.raises(ConfigError, match=r"'~no-such-user' in (FLASHEDGE_HOME|the environment);"):
        load_config(environ={name: "~no-such-user"})
