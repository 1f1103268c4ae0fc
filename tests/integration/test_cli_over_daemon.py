"""The command line as users run it, against a daemon process whose engines are simulated."""

import json
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psutil
import pytest

from flashedge.config import Config
from flashedge.daemon import control
from tests.support import commands
from tests.support.commands import cli, list_runs, start_cli, url_of, wait_for

pytestmark = pytest.mark.xdist_group("command line")  # one process starts the shared daemon
LONG = ("-n", "512", "--set=branching=2", "--set=max_steps=200")


def test_solve_twice_then_look_at_the_daemon_and_its_runs(
    shared_config: Config, shared_daemon: subprocess.Popen[bytes]
) -> None:
    command = ("solve", "How many?", "-n", "4", "--seed", "7")
    first, second = (cli(*command, "--json") for _ in range(2))
    assert first.returncode == 0, first.stderr
    result, again = json.loads(first.stdout), json.loads(second.stdout)
    assert (result["status"], result["n"], result["seed"]) == ("finished", 4, 7)
    assert len(result["completions"]) == 4
    assert again["tree"] == result["tree"]
    plain = cli(*command)
    assert plain.returncode == 0
    assert "4 complete" in plain.stderr
    told = json.loads(cli("ps", "--json").stdout)
    assert (told["engines"]["generator"]["state"], told["status"]) == ("ready", "ready")
    checks = {c["name"]: c for c in json.loads(cli("doctor", "--json").stdout)}
    assert checks["daemon"]["detail"] == f"ready at {url_of(shared_config)}"
    assert [r["id"] for r in list_runs("finished")][1:3] == [again["id"], result["id"]]
    shown = json.loads(cli("runs", "show", result["id"], "--json").stdout)
    assert shown["tree"] == result["tree"]
    exported = cli("runs", "export", result["id"]).stdout.splitlines()
    assert json.loads(exported[-1])["event"]["type"] == "RunFinished"
    assert cli("runs", "rm", result["id"]).returncode == 0
    assert cli("runs", "show", result["id"]).returncode == 2


def test_strategies_and_early_exit(shared_daemon: subprocess.Popen[bytes]) -> None:
    given = ("thresholds.entropy=0", "detect=2", "policy=every_step")
    exits = [f"--set=early_exit.{field}" for field in given]
    for flags, cut_by, completions in (
        (("--strategy", "self-consistency-6", "--no-early-exit"), None, 6),
        (("--strategy", "self-consistency-6", *exits), "certainty", 2),
        (("--strategy", "mcts-2", "--set", "c=0.5"), None, 2),
        (("--strategy", "probed_cot", "--no-early-exit", "--set", "probe_tokens=16"), None, 1),
    ):
        done = cli("solve", "How many?", "--json", "--seed", "7", *flags)
        result = json.loads(done.stdout)
        assert done.returncode == (1 if result["answer"] is None else 0), done.stderr
        assert result["cut_by"] == cut_by, flags
        assert len(result["completions"]) >= completions
        if flags[1] == "probed_cot":
            assert result["usage"]["probe_tokens"] > 0
    stored = cli("runs", "export", result["id"]).stdout.splitlines()
    told = {json.loads(line).get("event", {}).get("type") for line in stored}
    assert {"Probed", "CertaintyUpdated"} <= told


def test_ctrl_c_cancels(shared_daemon: subprocess.Popen[bytes]) -> None:
    process = start_cli("solve", "p", *LONG)
    (run,) = wait_for(lambda: list_runs("running"))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    # The daemon lists a run before its client has read the run's name.
    assert f"cancelled run {run['id']}" in err or "the daemon cancels a run" in err
    assert wait_for(lambda: list_runs("cancelled"))[0]["id"] == run["id"]


def test_a_search_that_waits_says_so_everywhere(shared_daemon: subprocess.Popen[bytes]) -> None:
    """The long one has more paths than the engines have use for, so nothing runs beside it."""
    long = start_cli("solve", "How many?", *LONG)
    wait_for(lambda: list_runs("running"))
    waiting = start_cli("solve", "And now?", "-n", "4", "--program", "job", "--priority", "1")
    (queued,) = wait_for(lambda: list_runs("queued"))
    assert queued["position"] == 0
    scheduling = json.loads(cli("ps", "--json").stdout)["scheduling"]
    assert scheduling["policy"] == "shortest"
    places = [(p["has_started"], p["place"]) for p in scheduling["programs"]]
    assert places == [(True, None), (False, 0)]
    last = scheduling["programs"][-1]
    assert (last["key"], last["client"], last["kind"]) == ("job of cli", "cli", "batch")
    assert "#1     job" in cli("ps").stdout
    assert "queued #1" in cli("runs", "ls").stdout
    shown = cli("runs", "show", queued["id"]).stderr
    assert shown.startswith(f"run {queued['id']} is queued: next")
    long.send_signal(signal.SIGINT)
    long.communicate(timeout=60)
    _, told = waiting.communicate(timeout=60)
    assert f"run {queued['id']} waits: next" in told
    assert waiting.returncode == 0, told


def test_daemon_stopped_in_mid_run(config: Config, daemon: subprocess.Popen[bytes]) -> None:
    process = start_cli("solve", "p", *LONG)
    wait_for(lambda: list_runs("running"))
    assert control.stop(config) == daemon.pid
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert "was cancelled: the daemon stopped" in err
    assert daemon.wait(60) == 0


def test_three_who_start_it_at_once_get_one_daemon(config: Config) -> None:
    before = psutil.Process(os.getpid()).children()
    with ThreadPoolExecutor(3) as pool:
        found = list(
            pool.map(lambda _: control.ensure(config, command=commands.SIMULATED), range(3))
        )
    assert len({record.pid for record in found}) == 1
    mine, daemons = set(psutil.Process(os.getpid()).children()) - set(before), 0
    for process in mine:
        with suppress(psutil.Error):  # one that has lost the race may end now
            daemons += "sim_daemon" in " ".join(process.cmdline())
    assert daemons == 1


def test_chat_over_a_pipe(shared_daemon: subprocess.Popen[bytes]) -> None:
    text = "hello\n/search beam-2\nhow many?\n/tree\n"
    done = subprocess.run(
        [*commands.CLI, "chat", "--max-tokens", "32"],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stderr
    assert "2 complete" in done.stdout
