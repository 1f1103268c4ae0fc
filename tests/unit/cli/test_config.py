"""`config show|path|set|unset`: the settings as a user reads and changes them."""

import json
import shlex
from pathlib import Path

import pytest

from flashedge.config import list_settings, load_config
from tests.support.cli_rig import Cli, Patch


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "home" / "config" / "config.toml"
    path.parent.mkdir(parents=True)
    return path


def test_show_lists_every_setting_with_its_source(cli: Cli, file: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("FLASHEDGE_MAX_RUNNING", "3")
    cli("config", "set", "port", "9001")
    found = {s["name"]: s for s in json.loads(cli("config", "show", "--json").out)}
    assert list(found) == [s.name for s in list_settings()]
    for name, value, where in (
        ("port", 9001, str(file)),
        ("max_running", 3, "environment"),
        ("host", "127.0.0.1", "default"),
    ):
        assert (found[name]["value"], found[name]["source"]) == (value, where)
    assert found["port"]["variable"] == "FLASHEDGE_PORT"
    assert found["port"]["description"].startswith("Port that the daemon listens on")
    assert cli("config", "path").out == f"{file}\n"
    lines = cli("config", "show").out.splitlines()
    assert len(lines) == len(found) + 1
    assert any(line.split() == ["port", "9001", str(file)] for line in lines)


def test_show_tells_what_one_setting_means(cli: Cli) -> None:
    lines = cli("config", "show", "scheduling_policy").out.splitlines()
    assert lines[0] == "scheduling_policy = shortest (default)"
    assert lines[1].startswith("Which of the waiting programs goes next")
    assert "choices: fcfs, gang, tie, shortest" in lines[3]
    assert lines[4].endswith(
        "in config.toml: scheduling_policy; in the environment: FLASHEDGE_SCHEDULING_POLICY"
    )
    (one,) = json.loads(cli("config", "show", "scheduling_policy", "--json").out)
    assert one["name"] == "scheduling_policy"
    cli("config", "set", "features", "speculation=off")
    shown = [line.split()[:2] for line in cli("config", "show", "features").out.splitlines()]
    for row in (["speculation", "off"], ["gang", "on"], ["early_scores", "auto"]):
        assert row in shown
    (one,) = json.loads(cli("config", "show", "features", "--json").out)
    assert (one["value"], one["default"]) == ({"speculation": False}, {})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        *((f"{command} prot", "did you mean port?") for command in ("show", "unset")),
        ("set prot 1", "did you mean port?"),
        ("set config_dir /tmp", "there is no setting 'config_dir'"),
        ("set foo 1", "there is no setting 'foo'\n  list them: flashedge config show"),
        ("set port x", "port is 'x' in the command; it must be an integer"),
        ("set kv_bytes much", "it must be a size"),
        ("set idle_timeout_s ''", "flashedge config unset idle_timeout_s"),
    ],
)
def test_a_bad_setting(cli: Cli, file: Path, arguments: str, said: str) -> None:
    done = cli.ends(2, said, "config", *shlex.split(arguments))
    assert (done.out, "unset" in done.err) == ("", "unset" in said)
    assert not file.exists()


def test_set_keeps_comments_and_other_keys(cli: Cli, file: Path) -> None:
    before = "# mine\nport = 1 # old\n\n[features]\n# why\nlookahead = true\nkv_split = false\n"
    file.write_text(before)
    assert cli("config", "set", "port", "9001").code == 0
    assert cli("config", "set", "clusters_threshold", "0.7").code == 0
    changed = before.replace("port = 1", "port = 9001")
    assert [line for line in changed.splitlines() if line not in file.read_text()] == []
    config = load_config()
    assert (config.port, config.clusters_threshold) == (9001, 0.7)
    assert str(config.features) == "lookahead=on,kv_split=off"
    assert cli("config", "set", "features", "gang=off").code == 0
    assert str(load_config().features) == "gang=off"
    assert "[features]" not in file.read_text()


@pytest.mark.parametrize(
    ("key", "value", "parsed"),
    [
        ("kv_bytes", "512MiB,auto", (512 << 20, None)),
        ("devices", "0+1,2", (("0", "1"), ("2",))),
        ("devices", "auto", (None, None)),
        ("max_request_bytes", "64MiB", 64 << 20),
        ("idle_timeout_s", "600", 600.0),
        ("batch_invariant", "true", True),
        ("pair", "math-1.5b+skywork-1.5b", "math-1.5b+skywork-1.5b"),
        ("cache_dir", "/tmp/models", Path("/tmp/models")),
    ],
)
def test_each_kind_of_value_comes_back(cli: Cli, key: str, value: str, parsed: object) -> None:
    cli.ends(0, "", "config", "set", key, value)
    assert getattr(load_config(), key) == parsed


def test_a_key_is_never_printed_and_its_file_is_private(cli: Cli, file: Path) -> None:
    done = cli("config", "set", "api_key", "secret-1")
    assert "secret-1" not in done.out + done.err
    assert "secret-1" not in cli("config", "show").out + cli("config", "show", "--json").out
    assert load_config().api_key == "secret-1"
    assert file.stat().st_mode & 0o077 == 0


def test_a_variable_that_overrides_the_file_is_named(cli: Cli, monkeypatch: Patch) -> None:
    monkeypatch.setenv("FLASHEDGE_PORT", "7")
    said = "FLASHEDGE_PORT is set in the environment and overrides the file."
    cli.ends(0, said, "config", "set", "port", "9001")
    assert cli("config", "unset", "port").out.endswith("; now 7 (environment)\n")


def test_a_setting_that_was_not_set(cli: Cli, file: Path) -> None:
    said = f"idle_timeout_s was not set in {file}"
    assert cli.ends(0, said, "config", "unset", "idle_timeout_s").out == ""
    assert not file.exists()


@pytest.mark.parametrize("command", ["set", "unset"])
def test_names_complete(cli: Cli, monkeypatch: Patch, command: str) -> None:
    monkeypatch.setenv("_FLASHEDGE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"flashedge config {command} idle")
    monkeypatch.setenv("COMP_CWORD", "3")
    assert cli().out.split() == ["idle_timeout_s"]


def test_unset_removes_the_key_and_nothing_else(cli: Cli, file: Path) -> None:
    kept = "# mine\nport = 1 # kept\n"
    file.write_text(f"{kept}clusters_model = 'x'\n")
    done = cli("config", "unset", "clusters_model")
    told = f"clusters_model removed from {file}; now not set (default)\n"
    assert (done.code, done.out) == (0, told)
    assert file.read_text() == kept
    assert load_config().clusters_model is None


def test_a_link_stays_one_and_broken_toml_is_named(cli: Cli, file: Path, tmp_path: Path) -> None:
    (tmp_path / "dotfile.toml").write_text("port = 1\n")
    file.symlink_to(tmp_path / "dotfile.toml")
    assert cli("config", "set", "port", "2").code == 0
    assert file.is_symlink()
    assert (tmp_path / "dotfile.toml").read_text() == "port = 2\n"
    file.write_text("port = = 1\n")
    for command in (("set", "port", "2"), ("show",)):
        cli.ends(2, f"{file} is not valid TOML", "config", *command)
