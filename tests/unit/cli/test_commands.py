"""The other commands: daemon, runs, models, doctor; help and speed."""

import errno
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from flashedge.cli import connection
from flashedge.cli.daemon import _is_over
from flashedge.cli.doctor import command as doctor
from flashedge.cli.ps import (
    describe_drafts,
    describe_kernels,
    describe_kv,
    describe_replays,
    print_programs,
)
from flashedge.config import load_config
from flashedge.daemon import control as daemon_control
from flashedge.daemon.process import bind
from flashedge.errors import ConfigError
from flashedge.events import RunFinished, from_json
from flashedge.models.memory.card_memory import build_idle_card
from flashedge.sizes import format_size
from tests.support.boost_rig import SPEC, run_boosted
from tests.support.cli_rig import CARD, Cli, Patch, Terminal, failing, with_daemon
from tests.support.fake_daemon import FakeDaemon
from tests.support.hostile import strip_sequences
from tests.support.paths import ROOT
from tests.support.screen import open_screen
from tests.support.story import NAMED, PROGRAMS, STATUS, STORY, SUMMARY
from tests.support.tiny_models import write_hub_model, write_model

QWEN = "Qwen/Qwen2.5-1.5B-Instruct"
QWEN_COMMIT = "989aa7980e4cf806f80c7fef2b1adb7bc71aa306"
SKYWORK = "Skywork/Skywork-o1-Open-PRM-Qwen-2.5-1.5B"
PAIR = "qwen-1.5b+skywork-1.5b"


def test_help_imports_nothing_slow_and_no_dashboard(cli: Cli) -> None:
    code = (
        "import sys\n"
        "from flashedge.cli.main import main\n"
        "main(['--help'])\n"
        "heavy = ['torch', 'vllm', 'transformers', 'fastapi', 'uvicorn', 'httpx', 'psutil']\n"
        "heavy += ['textual', 'flashedge.tui']\n"
        "print([m for m in heavy if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stderr.strip(), "solve" in done.stdout) == ("[]", True)
    assert cli("--version").out.startswith("flashedge ")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("frobnicate", "No such command"),
        ("up --pair bundeld", "did you mean 'bundled'?"),
        ("up --port 70000", "at most 65535"),
        ("up --host 0.0.0.0", "no API key is set"),
        ("runs show run-9", "there is no run 'run-9'\n  list them: flashedge runs ls"),
        ("solve", "there is no problem to solve"),
        ("solve p --file f", "give the problem once"),
        ("solve '  '", "the problem is empty"),
        ("solve p --temperature nan", "temperature is nan"),
        ("solve p --deadline inf", "deadline is inf"),
        ("solve p --strategy beam-16 -n 8", "contradict each other"),
        ("solve p --strategy Beam!", "no strategy 'Beam!'"),
        ("solve p --strategy beem-4", "did you mean 'beam'?"),
        ("solve p --no-early-exit --set early_exit.detect=2", "--no-early-exit contradicts detect"),
        ("solve p --set c=[1e999]", "c is inf; it must be a finite number"),
        ("solve p -n four", "error: --n is 'four'; it must be an integer\n"),
        ("solve p --temperature x", "--temperature is 'x'; it must be a number"),
        ("solve p --set top_k=1.5", "top_k is 1.5; it must be an integer in [0, 1048576]"),
        ("solve p --strategy beam-9999", "n is 9999; it must be an integer in [1, 1024]"),
        ("solve p --pair nope", "there is no pair 'nope'\n  list them: flashedge models ls"),
        ("solve p --no-such-option", "No such option"),
        *(
            (f"solve p --program {shlex.quote(name)}", "the program is named")
            for name in ("café", "", "a\nb", "x" * 201, " a")
        ),
        ("score", "there is no problem"),
        ("score p", "there is no solution"),
        ("score p s --output x", "--output needs --input"),
        ("score p s --jobs 0", "--jobs needs --input"),
        ("calibrate problems.jsonl -n 0", "n is 0; to calibrate it must be in [2, 256]"),
        ("calibrate gone.jsonl --strategy bem", "no strategy 'bem'"),
        ("calibrate gone.jsonl --strategy beam-4 -n 5", "contradict"),
        ("calibrate gone.jsonl --strategy probed_cot -n 4", "one chain"),
        ("calibrate gone.jsonl --policy luck", "policy"),
        ("calibrate gone.jsonl --max-loss 2", "max_loss"),
        ("calibrate gone.jsonl --plot x.pdf", ".svg or .png"),
        ("score p --input x", "either --input or one problem"),
        ("score --input x", "--input needs --output"),
    ],
)
def test_mistake(cli: Cli, daemon: FakeDaemon, monkeypatch: Patch, command: str, said: str) -> None:
    monkeypatch.setattr("sys.stdin", Terminal())
    assert cli.ends(2, said, *shlex.split(command)).out == ""
    assert not [request for request in daemon.requests if request.method == "POST"]


@pytest.mark.parametrize(
    "command", ["runs ls", "runs show x", "runs rm x", "runs export x", "logs"]
)
def test_without_a_daemon_runs_and_logs_say_so(cli: Cli, command: str) -> None:
    cli.ends(4, "flashedge up", *command.split())
    assert cli.ends(1, "flashedge up", "ps").out == ""
    assert json.loads(cli.ends(1, "", "ps", "--json").out) == {"daemon": None}


def test_ps(cli: Cli, daemon: FakeDaemon) -> None:
    done = cli.ends(1, "", "ps")  # an engine is dead
    assert done.out.startswith("ready: pair bundled at http://127.0.0.1:8642, process 4242")
    for said in ("kernels are batch-invariant, tested up to 4096 tokens", "4/64", "dead"):
        assert said in done.out
    daemon.detail = "verifier: it hung; restart 3 in 12 s"
    assert cli("ps").out.rstrip().endswith("\nverifier: it hung; restart 3 in 12 s")
    told = json.loads(cli("ps", "--json").out)
    assert (told["daemon"]["pid"], told["detail"]) == (4242, daemon.detail)
    assert told["engines"]["verifier"]["restarts"] == 2
    daemon.health, daemon.detail = "starting", "generator: compiling the model"
    assert daemon.detail in cli("ps").out.splitlines()


def test_ps_tells_what_the_self_test_found_and_what_determinism_cost() -> None:
    same = "kernels are batch-invariant, tested up to 2048 tokens: the same request gives the same"
    invariant = {"batch_invariant": True, "invariant_tokens": 2048}
    assert describe_kernels(invariant) == f"{same} tree"
    assert describe_kernels({"batch_invariant": False, "max_logprob_difference": 0.0312}) == (
        "kernels are not batch-invariant (log-probabilities differ by up to 0.031): the same"
        " request can give another tree; ask for deterministic, or on a card set batch_invariant"
    )
    assert describe_kernels({}) is None
    counts = {"verified_tokens": 120, "rollbacks": 1, "recomputed_tokens": 14, "verify_passes": 8}
    counts |= {"prefill_passes": 2, "pass_us": 1_500_000}
    assert describe_replays({"view": {"replays": counts}}) == (
        "deterministic requests: 120 tokens verified, 1 rollback (14 tokens drawn again),"
        " 10 passes in 1.5 s"
    )
    for view in ({"replays": {**counts, "verified_tokens": 0}}, None):
        assert describe_replays({"view": view}) is None
        assert describe_drafts({"view": view}) is None
    drafts = {"drafted_tokens": 1600, "accepted_tokens": 400}
    assert describe_drafts({"view": {"token_drafts": drafts}}) == (
        "token drafts: 25% of 1,600 were right"
    )


def test_ps_tells_how_much_kv_moved_or_why_none_does() -> None:
    counts = {"saved_bytes": 3 << 20, "loaded_bytes": 1 << 20, "mapped_bytes": 2 << 30}
    moved = {"view": {"kv_moved": {**counts, "unmapped_bytes": 1 << 30}}}
    still = {"view": {"kv_moved": dict.fromkeys(counts, 0)}}
    assert list(describe_kv({"generator": moved, "verifier": still, "other": {}})) == [
        "KV of the generator: 3.0 MiB went to host memory, 1.0 MiB came back; it gave up 1.0 GiB of"
        " memory and took 2.0 GiB"
    ]
    fixed = {"kv_fixed": "the feature mapped_kv is off"}
    assert list(describe_kv({"generator": fixed, "verifier": fixed})) == [
        "the KV memory is divided once, when the engines start: the feature mapped_kv is off"
    ]


def ps_lines(cli: Cli, daemon: FakeDaemon, **status: Any) -> list[str]:
    """What `ps` prints where the daemon's status has these fields."""
    daemon.errors["GET /v1/status"] = httpx.Response(200, json={**STATUS, **status})
    return [line.rstrip() for line in cli("ps").out.splitlines()]


def test_ps_tells_latencies_and_who_else_uses_the_card(cli: Cli, daemon: FakeDaemon) -> None:
    view = {"blocks_used": 1, "quota_blocks": 2, "cache_hits": 0.926}
    engines = {"generator": {"state": "ready", "view": view}}
    user = {"card": 0, "pid": 80, "name": "a\x1b[5m", "memory_bytes": 4 << 30}
    pairs = {"bundled": {"engines": engines, "card_users": [user]}}
    each = {"p50": 0.0123, "p90": 0.02, "p99": 0.1}
    quick = {"requests": 1200, "first_token_s": {"p50": 0.25, "p90": 1, "p99": 12}, "token_s": each}
    latency = {"chat": {"requests": 0, "first_token_s": None, "token_s": None}, "run": quick}
    lines = ps_lines(cli, daemon, pairs=pairs, engines=engines, latency=latency, scheduling={})
    assert next(line for line in lines if line.startswith("generator")).endswith("93%")
    assert lines[-2:] == [
        "searches, the last 1,200: first token p50 0.25, p90 1, p99 12 s;"
        " each next one p50 12.3, p90 20, p99 100 ms",
        "other programs hold memory of the card: a␛[5m (process 80) 4.0 GiB",
    ]


def test_ps_shows_programs_in_order_and_how_rollouts_are_divided(
    cli: Cli, daemon: FakeDaemon, monkeypatch: Patch
) -> None:
    told = json.loads(cli("ps", "--json").out)
    assert told["scheduling"] == {"policy": "shortest", "programs": list(PROGRAMS)}
    lines = cli("ps").out.splitlines()
    assert "2 runs, 1 waiting, policy shortest" in lines
    at = next(i for i, line in enumerate(lines) if line.startswith("programs"))
    head, *rows = (line.split() for line in lines[at + 1 :])
    assert " ".join(head) == "place program client kind waited median tail starts in"
    assert rows == [
        ["open", "chatcmpl-1", "person", "chat", "3", "s", "-", "-", "-"],
        ["runs", "run-3bd2", "cli", "search", "3", "s", "-", "-", "-"],
        ["#1", "run-5eab", "cli", "search", "3", "s", "420", "1,532", "~12", "s"],
        ["#2", NAMED["key"], "my-agent", "batch", "3", "s", "420", "1,532", "-"],
    ]
    runs = {"run-3bd2aaaaaaaa": 3, "run-5eabaaaaaaaa": 1}
    boost = {"pair": "bundled", "budget": 8, "reason": "the KV memory is full", "runs": runs}
    scheduling = {"policy": "tie", "programs": [], "boosts": [boost]}
    lines = ps_lines(cli, daemon, scheduling=scheduling)
    assert "2 runs, 1 waiting, policy tie" in lines
    assert not [line for line in lines if "programs" in line]
    at = lines.index("boosted runs of bundled: 4 of 8 rollouts (the KV memory is full)")
    rows = [line.split() for line in lines[at + 1 : at + 4]]
    assert rows == [["run", "rollouts"], ["run-3bd2", "3"], ["run-5eab", "1"]]
    screen = open_screen(monkeypatch, columns=80)
    print_programs(PROGRAMS)
    _, _, *lines = strip_sequences(screen.printed).splitlines()  # a heading stands above
    assert len(lines) == 1 + len(PROGRAMS), "no row is folded"
    assert lines[3].split()[-2:] == ["~12", "s"]
    assert lines[4].startswith("#2     my-long-researc…  my-agent  batch")


def test_a_boosted_run_is_replayed(cli: Cli, daemon: FakeDaemon) -> None:
    cli.ends(2, "its seed alone repeats it", "runs", "replay", "run-1")  # it is not boosted
    events = run_boosted(SPEC, 1).events
    daemon.story = list(enumerate(events, start=1))
    done = cli("runs", "replay", "run-1")
    assert (done.code, done.err, done.out[:15]) == (0, "", "the same tree (")
    told = json.loads(cli("runs", "replay", "run-1", "--json").out)
    assert (told["same"], told["allowances"] > 1) == (True, True)
    daemon.story[-1] = (len(events), RunFinished(result={**events[-1].result, "answer": "7"}))
    assert "another tree: the answer is" in cli.ends(1, "", "runs", "replay", "run-1").out


def test_a_slow_start(capfd: pytest.CaptureFixture[str], monkeypatch: Patch) -> None:
    times = iter([0.0, 5.0, 16.0, 16.0, 20.0, 40.0, 40.0])
    monkeypatch.setattr(connection.time, "monotonic", lambda: next(times))
    with connection.show_start() as show:
        for state in ("loading", "compiling", "graphs", "graphs"):
            show(state)
    lines = [line.strip() for line in capfd.readouterr().err.splitlines()]
    assert lines == ["starting the daemon" + state for state in ("", ": compiling", ": graphs")]


def test_up_when_a_daemon_runs(cli: Cli, daemon: FakeDaemon) -> None:
    told = "FlashEdge already serves pair bundled at http://127.0.0.1:8642\n"
    assert cli.ends(0, "", "up").out == told
    assert cli("up", "--pair", "bundled", "--port", "8642", "--json").code == 0
    for other in (("--port", "8643"), ("--pair", PAIR), ("--install",)):
        cli.ends(4, "already runs at http://127.0.0.1:8642 (process 4242", "up", *other)


@pytest.mark.parametrize("command", ["--help", "models ls --json", "config show"])
def test_a_closed_pipe_is_exit_141(command: str) -> None:
    code = (
        "import sys\n"
        "from flashedge.cli.main import main\n"
        "sys.stdin.read()\n"  # until the reader of our output is gone
        f"sys.exit(main({command.split()!r}))"
    )
    pipe = subprocess.PIPE
    process: Any = subprocess.Popen(
        [sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )
    process.stdout.close()
    process.stdin.close()
    said = process.stderr.read()
    assert process.wait(60) == 141, said
    assert not [word for word in ("Traceback", "Exception") if word in said]


def test_a_log_that_was_emptied_or_replaced_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "daemon.out"
    path.write_text("one\n")
    with path.open() as file:
        assert (file.read(), _is_over(path, file)) == ("one\n", False)
        os.truncate(path, 0)
        assert _is_over(path, file)
    with path.open() as file:
        path.rename(tmp_path / "daemon.out.1")
        assert not _is_over(path, file)
        path.write_text("two\n")
        assert _is_over(path, file)


def test_up_and_down_with_a_real_process(cli: Cli, monkeypatch: Patch) -> None:
    stub = (sys.executable, str(ROOT / "tests" / "support" / "stub_daemon.py"))
    monkeypatch.setattr(daemon_control.start, "__defaults__", (None, stub))
    told = json.loads(cli.ends(0, "", "up", "--port", "0", "--json").out)
    assert told["pair"] == "bundled"
    assert httpx.get(told["url"] + "/health", trust_env=False).status_code == 200
    assert "ready: pair bundled" in cli.ends(0, "", "ps").out
    assert "starts: pair bundled" in cli("logs").out
    assert len(cli("logs", "-n", "1").out.splitlines()) == 1
    down = cli("down")
    assert down.err == f"stopping the daemon (process {told['pid']})\n", "before it has ended"
    assert down.out == f"stopped the daemon (process {told['pid']})\n"
    assert "no daemon runs" in cli("down").err
    soon = cli.ends(0, "The daemon starts", "up", "--port", "0", "--no-wait", "--json")
    assert json.loads(soon.out)["pid"] == json.loads(cli("down", "--json").out)["stopped"]


def test_up_with_auto_downloads_the_pair_that_fits(
    cli: Cli, tmp_path: Path, monkeypatch: Patch
) -> None:
    cli.ends(2, "this machine has no card", "up", "--pair", "auto")
    card, pulled = build_idle_card("GeForce RTX 4090", 24_564 << 20), list[str]()
    monkeypatch.setattr("flashedge.cli.doctor.fit.find_place", lambda *_: card)
    monkeypatch.setattr(
        "flashedge.cli.models.pull_from_hub", lambda spec, _: pulled.append(spec.source)
    )
    monkeypatch.setattr("flashedge.cli.daemon.renew_profile", failing(ConfigError("stop here")))
    said = cli.ends(2, "stop here", "up", "--pair", "auto").err
    assert "qwen3-30b-a3b-gptq+skywork-1.5b fits GeForce RTX 4090: Qwen3-30B-A3B" in said
    assert "downloading Qwen/Qwen3-30B-A3B-GPTQ-Int4, about 16.8 GB" in said
    assert pulled == ["Qwen/Qwen3-30B-A3B-GPTQ-Int4", SKYWORK]
    cache = tmp_path / "home" / "cache" / "hub"
    for source, kind in ((pulled[0], "Qwen3MoeForCausalLM"), (SKYWORK, "Qwen2ForPrmModel")):
        made = write_hub_model(cache, source, "a" * 40, kind)
    (made / "model.safetensors").unlink()
    pulled.clear()
    cli.ends(2, "stop here", "up", "--pair", "auto")
    assert pulled[-1] == SKYWORK, "half a download is resumed"
    card = build_idle_card("GeForce GTX 1650", 4 << 30)
    said = f"no pair fits GeForce GTX 1650: {format_size(card.free_bytes)} free, "
    assert "needed" in cli.ends(2, said, "up", "--pair", "auto").err


def test_up_with_auto_asks_a_running_daemon_first(cli: Cli, daemon: FakeDaemon) -> None:
    assert "already serves pair bundled" in cli.ends(0, "", "up", "--pair", "auto").out


def test_up_in_the_foreground_becomes_the_daemon_process(cli: Cli, monkeypatch: Patch) -> None:
    class Replaced(BaseException):
        pass

    def replace_process(path: str, command: list[str]) -> None:
        assert (path, command[3]) == (sys.executable, "flashedge.daemon")
        assert command[-2:] == ["--set", "port=0"]
        raise Replaced

    monkeypatch.setattr(os, "execv", replace_process)
    with pytest.raises(Replaced):
        cli("up", "--foreground", "--port", "0")


def test_runs(cli: Cli, daemon: FakeDaemon) -> None:
    listed = cli("runs", "ls").out
    assert ("run-1" in listed, "beam-2" in listed) == (True, True)
    assert json.loads(cli("runs", "ls", "--json").out)[0]["id"] == "run-1"
    assert cli.ends(0, "✓ 0.95", "runs", "show", "run-1").out == "19\n"
    assert json.loads(cli("runs", "show", "run-1", "--json").out)["answer"] == "19"
    shown = cli("runs", "show", "run-1", "--tree", "--depth", "1").out
    (kept,) = [line for line in shown.splitlines() if "12 + 7 = 19." in line]
    assert ("● 0.90" in kept, "+1 node below" in kept, "boxed" in shown) == (True, True, False)
    assert "boxed" in cli("runs", "show", "run-1", "--tree", "--depth", "2").out
    assert cli("runs", "rm", "run-1", "run-1").err == "removed run-1\n"
    for limit, rule in (("0", "at least 1"), ("9999", "at most 1000")):
        told = json.loads(cli("runs", "ls", "--json", "--limit", limit).out)["error"]
        wrong = f"--limit is {limit}; it must be {rule}"
        assert (told["message"], told["param"]) == (wrong, "limit")
    waits = {**SUMMARY, "status": "queued", "position": 2, "starts_in_s": 95.0}
    daemon.errors["GET /v1/runs/run-1"] = httpx.Response(200, json=waits)
    assert "queued: 2 before it, starts in about 2 min" in cli("runs", "show", "run-1").err


def test_the_next_page_of_a_search_is_of_the_same_search(cli: Cli, daemon: FakeDaemon) -> None:
    page = {"data": [SUMMARY], "has_more": True}
    daemon.errors["GET /v1/runs"] = httpx.Response(200, json=page)
    done = cli("runs", "ls", "--grep", "Dan's 24 nuts", "--status", "finished")
    asked = daemon.requests[-1].url.params
    assert (asked["contains"], asked["status"]) == ("Dan's 24 nuts", "finished")
    more = done.err.splitlines()[-1].removeprefix("There are more: ")
    options = ["--status", "finished", "--grep", "Dan's 24 nuts", "--before", "run-1"]
    assert shlex.split(more) == ["flashedge", "runs", "ls", *options]
    daemon.errors["GET /v1/runs"] = httpx.Response(200, json={"data": [], "has_more": False})
    assert cli("runs", "ls", "--grep", "x").err == "there is no such run\n"
    assert cli("runs", "ls").err == "no runs yet\n"


def test_export_is_the_whole_run(cli: Cli, monkeypatch: Patch, tmp_path: Path) -> None:
    daemon, export = with_daemon(monkeypatch, FakeDaemon()), ("runs", "export", "run-1")
    lines = [json.loads(line) for line in cli(*export).out.splitlines()]
    assert lines[0]["run"]["id"] == "run-1"
    assert [(line["seq"], from_json(line["event"])) for line in lines[1:]] == daemon.story
    to = tmp_path / "run.jsonl"
    cli.ends(0, "", *export, "-o", str(to))
    assert len(to.read_text().splitlines()) == len(lines)
    cli.ends(2, "", *export, "-o", "/no/such/folder/x")
    for name in ("run.csv", "run.txt", "run.json"):
        said = f"can't be written as {Path(name).suffix}"
        assert "FILE.jsonl" in cli.ends(2, said, *export, "-o", str(tmp_path / name)).err
        assert not (tmp_path / name).exists()
    page = tmp_path / "run.html"
    page.write_text("mine")
    assert "--force" in cli.ends(2, "exists", *export, "-o", str(page)).err
    assert page.read_text() == "mine"
    cli.ends(0, "", *export, "-o", str(page), "--force")
    written = page.read_text(encoding="utf-8")
    assert written.startswith("<!doctype html>"), "the suffix chooses the format"
    assert "FlashEdge run run-1" in written
    assert cli(*export, "--html").out == written
    with_daemon(monkeypatch, FakeDaemon(STORY[:5], status="interrupted"))
    assert cli.ends(0, "12 + 7 = 19.", "runs", "show", "run-1").out == "interrupted\n"
    assert len(cli(*export).out.splitlines()) == 6


class ManyRuns(FakeDaemon):
    """A daemon with several runs, listed two a page."""

    def __init__(self, *runs: tuple[str, str, float], **fields: Any) -> None:
        super().__init__()
        now = time.time()
        self.runs = [
            {**SUMMARY, **fields, "id": run, "status": status, "created_at": now - age_s}
            for run, status, age_s in runs
        ]

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path != "/v1/runs":
            return super().answer(request)
        query = request.url.params
        start = [r["id"] for r in self.runs].index(query["before"]) + 1 if "before" in query else 0
        found = [r for r in self.runs[start:] if query.get("status") in (None, r["status"])]
        return httpx.Response(200, json={"data": found[:2], "has_more": len(found) > 2})


@pytest.fixture
def many(monkeypatch: Patch) -> FakeDaemon:
    day = 86400.0
    recent = (("run-a1b2c3", "running", 10.0), ("run-a1b2d4", "finished", day))
    old = (("run-b7", "failed", 9 * day), ("run-a1c3ff", "cancelled", 10 * day))
    daemon = ManyRuns(*recent, ("run-a1c3", "interrupted", 3 * day), *old)
    return with_daemon(monkeypatch, daemon)


REMOVED = {
    "b": ["run-b7"],
    "run-b": ["run-b7"],
    "a1b2d b7": ["run-a1b2d4", "run-b7"],
    "run-a1c3": ["run-a1c3"],  # a whole id, though another run begins with it
    "--all --yes": ["run-a1b2d4", "run-b7", "run-a1c3ff", "run-a1c3"],
    "--older-than 7d": ["run-b7", "run-a1c3ff"],
    "--older-than 100w": [],
    "--cancelled": ["run-a1c3ff"],
    "--cancelled --older-than 7d": ["run-a1c3ff"],
    "--cancelled --older-than 2w": [],
}


@pytest.mark.parametrize("given", REMOVED)
def test_runs_are_removed(cli: Cli, many: FakeDaemon, given: str) -> None:
    cli.ends(0, "", "runs", "rm", *given.split())
    assert many.deleted == REMOVED[given]


UNCLEAR = {
    **dict.fromkeys(("", "b7 --all", "--all --older-than 7d"), "say once which runs"),
    "--all --cancelled": "say once which runs",
    "--older-than 7": "--older-than is '7'",
    "--older-than soon": "--older-than is 'soon'",
    "--all": "add --yes",  # there is no terminal to ask on
    "zz": "there is no run 'zz'",
    "b7 a1b": "2 runs begin with 'a1b': run-a1b2c3, run-a1b2d4",
}


@pytest.mark.parametrize("given", UNCLEAR)
def test_an_unclear_removal(cli: Cli, many: FakeDaemon, given: str) -> None:
    cli.ends(2, UNCLEAR[given], "runs", "rm", *given.split())
    assert many.deleted == []


@pytest.mark.parametrize(("typed", "code", "count"), [("y\n", 0, 4), ("n\n", 1, 0), ("\n", 1, 0)])
def test_rm_all(
    cli: Cli, many: FakeDaemon, monkeypatch: Patch, typed: str, code: int, count: int
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    done = cli.ends(code, "Remove 4 runs with all trees?", "runs", "rm", "--all")
    assert (done.out.strip(), len(many.deleted)) == ("", count)


def test_runs_ls_prints_one_run_a_line(cli: Cli, monkeypatch: Patch) -> None:
    runs = ("run-aaaaaaaaaaaa", "interrupted", 5.0), ("run-aaaabbbbbbbb", "failed", 5.0)
    long = "How many are there? " * 30
    with_daemon(monkeypatch, ManyRuns(*runs, problem=long, answer="x" * 60))
    piped = cli("runs", "ls").out.splitlines()
    assert (len(piped), piped[1].startswith("run-aaaaa  interrupted")) == (3, True)
    assert long.strip() in piped[1]
    assert "run-aaaabbbbbbbb" in cli("runs", "ls", "--full").out
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    _, first, second = cli("runs", "ls").out.splitlines()
    assert ("run-aaaa" in first, "run-aaaa" in second) == (True, True)
    assert first.rstrip().endswith("…")


def hub(tmp_path: Path) -> Path:
    """A folder laid out by huggingface_hub that holds both models of PAIR."""
    write_hub_model(tmp_path / "hub", QWEN, QWEN_COMMIT, "Qwen2ForCausalLM")
    write_hub_model(tmp_path / "hub", SKYWORK, "a" * 40, "Qwen2ForPrmModel")
    return tmp_path / "hub"


def test_models_ls_and_show(cli: Cli, monkeypatch: Patch) -> None:
    done = cli("models", "ls", "--json")
    pairs = {p["name"]: p for p in json.loads(done.out)}
    assert pairs[PAIR]["local"] is False
    cards = {"math-7b+prm-7b": "32 GB", "math-7b+skywork-1.5b": "24 GB", "bundled": "any"}
    assert {name: pairs[name]["smallest_card"] for name in cards} == cards
    assert pairs["bundled"]["download_bytes"] == 0
    stored = pairs["qwen-7b-awq+prm-7b-fp8"]["download_bytes"]
    assert stored == 5_570_747_392 + 2 * 7_083_474_946, "FP8 is made of bf16 while it is loaded"
    rows = {row.split()[0]: row for row in cli("models", "ls").out.splitlines()}
    assert rows["bundled"].split()[:4] == ["bundled", "nothing", "any", "-"]
    assert rows[PAIR].split()[1:8] == ["~6.2", "GB", "12", "GB", "apache-2.0", "+", "skywork"]
    assert "apache-2.0 + ?" in rows["math-1.5b+shepherd-7b"], "its card names none"
    for said in ("licence skywork", f"not on this machine: flashedge models pull {PAIR}"):
        assert said in cli("models", "show", PAIR).out
    assert cli("models", "show", "nope").code == 2
    monkeypatch.setattr("flashedge.cli.models._find_card", lambda pair, config: (None, None))
    assert cli("models", "ls").out.splitlines()[1].split()[2] == "?", "its shape is unknown"


@pytest.mark.parametrize("inside", [".", "..", f"models--{SKYWORK.replace('/', '--')}"])
def test_pull_a_pair_from_a_hub_cache(cli: Cli, tmp_path: Path, inside: str) -> None:
    source = (hub(tmp_path) / inside).resolve()
    name = PAIR if inside in (".", "..") else SKYWORK
    done = cli.ends(0, "", "models", "pull", name, "--from", str(source))
    folders = [Path(line) for line in done.out.splitlines()]
    assert folders[-1].name == "a" * 40
    for folder in folders:
        assert folder.is_relative_to(tmp_path / "home" / "cache" / "hub")
        assert not any(f.is_symlink() for f in folder.iterdir())
    assert cli("models", "pull", name, "--from", str(source)).code == 0  # again changes nothing
    if name == PAIR:
        pairs = {p["name"]: p for p in json.loads(cli("models", "ls", "--json").out)}
        assert pairs[PAIR]["local"] is True


def test_pull_from_a_model_folder_or_not_at_all(
    cli: Cli, tmp_path: Path, monkeypatch: Patch
) -> None:
    pull = ("models", "pull", SKYWORK, "--from")
    folder = write_model(tmp_path / "mine", "Qwen2ForPrmModel")
    tokenizer = (folder / "tokenizer.json").rename(tmp_path / "away")
    cli.ends(2, "tokenizer.json is missing", *pull, str(folder))
    assert not (tmp_path / "home" / "cache").exists()
    assert "does not hold" in cli(*pull, str(tmp_path)).err
    with monkeypatch.context() as patch:
        patch.setattr("shutil.copytree", failing(OSError(28, "No space left on device")))
        cli.ends(2, "no space left", *pull, str(hub(tmp_path)))
    assert not list((tmp_path / "home" / "cache").rglob("config.json")), "half a copy is removed"
    tokenizer.rename(folder / "tokenizer.json")
    done = cli.ends(0, "", *pull, str(folder))
    assert (Path(done.out.strip()) / "config.json").exists()


def test_pull_asks_the_hub_for_the_pinned_revision(
    cli: Cli, tmp_path: Path, monkeypatch: Patch
) -> None:
    asked = {}

    def download(source: str, *, revision: str, cache_dir: Path, **kwargs: object) -> str:
        asked[source] = revision
        return str(write_hub_model(cache_dir, source, revision, "Qwen2ForCausalLM"))

    with monkeypatch.context() as patch:
        patch.setattr("flashedge.cli.models._is_hub_reachable", lambda: True)
        patch.setattr("huggingface_hub.snapshot_download", download)
        cli.ends(0, "", "models", "pull", QWEN)
        assert asked == {QWEN: QWEN_COMMIT}
        ref = tmp_path / "home" / "cache" / "hub" / "models--openai--gpt-oss-20b" / "refs" / "main"
        ref.parent.mkdir(parents=True)
        ref.write_text("c" * 40)
        cli("models", "pull", "openai/gpt-oss-20b")
        assert asked["openai/gpt-oss-20b"] == "c" * 40, "the commit of the first download stays"
        ref.write_text("local")  # of a folder that was copied
        cli("models", "pull", "openai/gpt-oss-20b")
        assert asked["openai/gpt-oss-20b"] == "main"
        patch.setattr("huggingface_hub.snapshot_download", failing(ConnectionError("no route")))
        cli.ends(4, "--from FOLDER", "models", "pull", SKYWORK)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    said = f"can't download {SKYWORK}: the hub can't be reached"
    err = cli.ends(4, said, "models", "pull", SKYWORK).err
    assert ("--from FOLDER" in err, len(err.splitlines())) == (True, 2)
    cli("models", "pull", SKYWORK, "--from", str(hub(tmp_path)))
    assert cli("models", "pull", SKYWORK).code == 0, "it is here"


def test_rm_touches_only_our_cache(cli: Cli, tmp_path: Path, monkeypatch: Patch) -> None:
    theirs = write_hub_model(tmp_path / "hf" / "hub", QWEN, QWEN_COMMIT, "Qwen2ForCausalLM")
    cli("models", "pull", SKYWORK, "--from", str(hub(tmp_path)))
    with monkeypatch.context() as patch:
        broken = OSError(errno.EIO, "Input/output error", "model.safetensors")
        patch.setattr("flashedge.cli.models.shutil.rmtree", failing(broken))
        cli.ends(2, "can't write model.safetensors: Input/output error", "models", "rm", SKYWORK)
    said = f"{QWEN}: not in FlashEdge's cache; nothing removed"
    assert f"removed {SKYWORK}" in cli.ends(0, said, "models", "rm", PAIR).err
    assert (theirs / "config.json").exists()
    assert cli("models", "rm", "bundled").code == 0
    assert cli("models", "rm", "nope").code == 2


def diagnose(cli: Cli, code: int) -> dict[str, dict[str, str]]:
    return {c["name"]: c for c in json.loads(cli.ends(code, "", "doctor", "--json").out)}


def test_doctor_finds_what_is_wrong(cli: Cli, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("FLASHEDGE_PAIR", PAIR)
    monkeypatch.setenv("FLASHEDGE_PORT", "0")
    checks = diagnose(cli, 1)
    assert checks["models"]["hint"] == f"flashedge models pull {QWEN}"
    verdicts = [checks[name]["verdict"] for name in ("models", "python", "state folder")]
    assert verdicts == ["wrong", "ok", "ok"]
    cli("models", "pull", PAIR, "--from", str(hub(tmp_path)))
    found = json.loads(cli("doctor", "--json").out)
    assert next(c for c in found if c["name"] == "models")["verdict"] == "ok"
    assert "✓ models" in cli("doctor").out


def test_doctor_on_versions_and_cards(monkeypatch: Patch) -> None:
    versions = {"torch": "2.13.0+cpu", "vllm": "0.31.0"}

    def version(name: str) -> str:
        if name in versions:
            return versions[name]
        raise doctor.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.importlib.metadata, "version", version)
    monkeypatch.setattr("flashedge.profiler.gpu.read_cards", lambda *_: (CARD,))
    monkeypatch.setattr(doctor, "load_config", lambda: load_config({}, {"FLASHEDGE_PORT": "x"}))
    checks = {c.name: c for c in doctor.run_checks()}
    assert checks["configuration"].detail.startswith("port is 'x' in the environment")
    assert checks["configuration"].verdict == checks["vllm"].verdict == "wrong"
    assert "0.31.0; FlashEdge needs 0.32.x" in checks["vllm"].detail
    gpu = checks["gpu"]
    assert (gpu.verdict, gpu.hint) == ("warning", "bash scripts/setup.sh --cuda")
    versions.clear()
    assert {c.name: c.detail for c in doctor.run_checks()}["torch"] == "not installed"


def test_doctor_on_ports(cli: Cli, monkeypatch: Patch) -> None:
    monkeypatch.setenv("FLASHEDGE_PORT", "x")
    assert "✗ configuration: port is 'x' in the environment" in cli.ends(1, "", "doctor").out
    with bind("127.0.0.1", 0) as taken:
        monkeypatch.setenv("FLASHEDGE_PORT", str(taken.getsockname()[1]))
        found = diagnose(cli, 1)["daemon"]
    assert (found["verdict"], "uses port" in found["detail"]) == ("wrong", True)
