"""The daemon on a disk that is full, and on the state folder of an earlier FlashEdge."""

import gzip
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from flashedge.client.run_view import RunView, fold
from flashedge.config import Config
from flashedge.daemon import control
from flashedge.daemon.files import find_log_path
from flashedge.errors import ConfigError
from flashedge.events import from_json
from flashedge.tui.state import build_replay
from tests.support.commands import cli, list_runs, start_simulated, url_of
from tests.support.paths import DATA

ASK = {"problem": "How many are left?", "n": 4}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB, in the place of the home."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root mounts a disk")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", tmp_path]).returncode:
        pytest.skip("mount is not allowed here")
    yield tmp_path
    subprocess.run(["umount", "-l", tmp_path], check=True)


def fill(disk: Path) -> Path:
    """Leave no byte of room."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (4096, 1):
            with suppress(OSError):
                while file.write(bytes(size)):
                    pass
    assert shutil.disk_usage(disk).free == 0
    return filler


def test_nothing_that_finished_is_lost(disk: Path, config: Config) -> None:
    start_simulated(config)
    with httpx.Client(base_url=url_of(config), timeout=60) as client:
        first = client.post("/v1/solve", json=ASK).json()
        filler = fill(disk)
        answers = [client.post("/v1/solve", json={**ASK, "seed": seed}) for seed in range(1, 4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200]
        during = [answer.json() for answer in answers]
        for run in during:
            told = client.get(f"/v1/runs/{run['id']}").json()
            assert (told["status"], told["stored"]) == ("finished", False)
        assert client.get("/health").json()["status"] == "ready"
        streamed = client.post("/v1/solve", json={**ASK, "stream": True})
        assert streamed.text.count("event: RunFinished") == 1
        kept = client.get(f"/v1/runs/{first['id']}").json()
        assert (kept["tree"], kept["stored"]) == (first["tree"], True)

        filler.unlink()
        after = client.post("/v1/solve", json={**ASK, "seed": 9}).json()
        runs = [first, *during, after]
        for run in runs:
            told = client.get(f"/v1/runs/{run['id']}").json()
            assert (told["tree"], told["stored"]) == (run["tree"], True)

    control.stop(config, timeout_s=10)
    start_simulated(config)
    with httpx.Client(base_url=url_of(config), timeout=60) as client:
        for run in runs:
            assert client.get(f"/v1/runs/{run['id']}").json()["tree"] == run["tree"]
        listed = client.get("/v1/runs?limit=100").json()["data"]
        assert {row["status"] for row in listed} == {"finished"}


def test_a_daemon_does_not_start_on_a_full_disk_and_says_so(disk: Path, config: Config) -> None:
    start_simulated(config)
    control.stop(config, timeout_s=10)
    filler = fill(disk)
    with pytest.raises(ConfigError, match=f"the disk of the state folder {disk}.* is full"):
        start_simulated(config)
    filler.unlink()
    start_simulated(config)
    assert "Traceback" not in find_log_path(config).read_text()


def test_the_commands_work_on_it(config: Config, tmp_path: Path) -> None:
    old = gzip.decompress((DATA / "store_schema_1.sqlite.gz").read_bytes())
    config.state_dir.mkdir(parents=True)
    (config.state_dir / "runs.sqlite").write_bytes(old)
    start_simulated(config)
    runs = list_runs()
    kinds = ["cancelled", "failed", *["finished"] * 6, "interrupted"]
    assert sorted(run["status"] for run in runs) == kinds
    assert len(cli("runs", "ls").stdout.splitlines()) > len(runs)
    for run in runs:
        assert cli("runs", "show", run["id"]).returncode == 0
        shown = json.loads(cli("runs", "show", run["id"], "--json").stdout)
        assert shown["status"] == run["status"]
        head, *events = cli("runs", "export", run["id"]).stdout.splitlines()
        assert json.loads(head)["run"]["status"] == run["status"]
        items = [(row["seq"], from_json(row["event"])) for row in map(json.loads, events)]
        assert build_replay(run["id"], items).advance(1e9).due == len(items)
        if run["status"] == "finished":
            view = fold(RunView(id=run["id"]), tuple(items))
            assert len(view.nodes) == len(shown["tree"]["nodes"])
        page = tmp_path / f"{run['id']}.html"
        assert cli("runs", "export", run["id"], "-o", str(page)).returncode == 0
        assert "How many are left?" in page.read_text()
    finished = next(run for run in runs if run["status"] == "finished")
    assert cli("solve", "How many are left?", "-n", "2").returncode == 0
    assert len(list_runs()) == len(runs) + 1
    assert cli("runs", "rm", finished["id"]).returncode == 0
    assert len(list_runs()) == len(runs)
