"""A state folder that an earlier FlashEdge left: the daemon opens it, and the commands show, replay
and export its runs. `tests/unit/runtime/records/test_migrations.py` says how it was made."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from flashedge.config import Config
from flashedge.daemon import control
from flashedge.events import from_json
from flashedge.tui.state import advance, build_replay
from tests.support.commands import SIMULATED, cli, list_runs
from tests.support.paths import DATA


def test_the_commands_work_on_it(config: Config, tmp_path: Path) -> None:
    old = gzip.decompress((DATA / "store_schema_1.sqlite.gz").read_bytes())
    config.state_dir.mkdir(parents=True)
    (config.state_dir / "runs.sqlite").write_bytes(old)
    process = control.start(config, {"port": 0}, SIMULATED)
    control.wait_ready(config, process, timeout_s=60)

    runs = list_runs()
    assert sorted(run["status"] for run in runs) == [
        "cancelled",
        "failed",
        *["finished"] * 6,
        "interrupted",
    ]
    assert len(cli("runs", "ls").stdout.splitlines()) > len(runs)
    for run in runs:
        shown = cli("runs", "show", run["id"])
        assert shown.returncode == 0, shown.stderr
        assert (
            json.loads(cli("runs", "show", run["id"], "--json").stdout)["status"] == run["status"]
        )
        head, *events = cli("runs", "export", run["id"]).stdout.splitlines()
        assert json.loads(head)["run"]["status"] == run["status"]
        numbered = [json.loads(line) for line in events]
        items = [(row["seq"], from_json(row["event"])) for row in numbered]
        assert advance(build_replay(run["id"], items), 1e9)[1] == tuple(items)
        page = tmp_path / f"{run['id']}.html"
        assert cli("runs", "export", run["id"], "-o", str(page)).returncode == 0
        assert "How many are left?" in page.read_text()
    finished = next(run for run in runs if run["status"] == "finished")
    assert cli("solve", "How many are left?", "-n", "2").returncode == 0
    assert len(list_runs()) == len(runs) + 1
    assert cli("runs", "rm", finished["id"]).returncode == 0
    assert len(list_runs()) == len(runs)
