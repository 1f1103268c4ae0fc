"""Requests made from the API's own document: none may end in a 5xx or in an undocumented answer.

schemathesis makes them: random ones in every run of the tests, and the edges of every field too
where long tests run. The daemon has simulated engines, because most requests are refused before an
engine sees them.
"""

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from flashedge.config import Config
from tests.support.commands import url_of
from tests.support.paths import ROOT

SCHEMATHESIS = ROOT / ".venv-clients" / "bin" / "schemathesis"
FEW, MORE = 2, 5
"""Random requests to each operation, alone and beside those of the edges."""

SLOW = ("/v1/load", "/v1/unload")
"""Each valid request to these loads or ends the engines; tests/unit/api covers them."""

WITH_RULES = ("/v1/solve", "/v1/runs", "/v1/score", "/score")
"""Their bodies have rules between fields, which JSON schema can't say: what the document allows may
be refused with 400."""


@pytest.fixture(scope="module", autouse=True)
def long_queue() -> Iterator[None]:
    """Hundreds of runs are asked for at once; a full queue's 503 is no fault."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHEDGE_QUEUE_LIMIT", "10000")
        yield


@pytest.fixture(scope="module")
def url(shared_config: Config, shared_daemon: subprocess.Popen[bytes]) -> str:
    subprocess.run(["bash", "scripts/clients.sh"], cwd=ROOT, check=True, timeout=400)
    return url_of(shared_config)


def name_paths(flag: str, paths: Sequence[str]) -> list[str]:
    return [word for path in paths for word in (flag, path)]


def test_what_is_left_out_exists(url: str) -> None:
    assert {*SLOW, *WITH_RULES} <= set(httpx.get(f"{url}/openapi.json").json()["paths"])


USUAL = name_paths("--exclude-path", (*SLOW, *WITH_RULES))
RULED = [*name_paths("--include-path", WITH_RULES), "--exclude-checks", "positive_data_acceptance"]


@pytest.mark.parametrize(
    ("phases", "examples", "options"),
    [
        pytest.param("fuzzing", FEW, USUAL, id="random"),
        pytest.param("coverage,fuzzing", MORE, USUAL, id="every", marks=pytest.mark.long),
        pytest.param("coverage,fuzzing", MORE, RULED, id="with rules", marks=pytest.mark.long),
    ],
)
def test_requests_are_answered_as_documented(
    url: str, tmp_path: Path, phases: str, examples: int, options: list[str]
) -> None:
    """The long ones take a minute each. One worker: with two, schemathesis's generators meet in a
    cache and end in an error of their own."""
    command = [str(SCHEMATHESIS), "run", f"{url}/openapi.json", "--phases", phases]
    command += ["-n", str(examples), "--workers", "1", "--seed", "1", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=tmp_path)
    print(done.stdout)  # with `pytest -s`: the numbers of operations, cases and findings
    assert done.returncode == 0, done.stdout[-6000:]
    health = httpx.get(f"{url}/health").json()
    assert health["status"] == "ready", health
