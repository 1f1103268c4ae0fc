"""The whole runs that `calibrate` replays: of a file's problems, or those the daemon has kept."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flashedge.cli import output
from flashedge.cli.progress import bar
from flashedge.config import Config
from flashedge.errors import FlashEdgeError

if TYPE_CHECKING:
    from flashedge.files.problems import LabelledProblem
    from flashedge.runtime.records.recordings import Recording

PAGE = 200


def run_problems(
    problems: Sequence[LabelledProblem], settings: Mapping[str, Any], work: str, config: Config
) -> tuple[Recording, ...]:
    """A whole run of each problem, those that an earlier call finished from the daemon's store.

    settings: the request's fields; work: what a run is of, beside them and its problem's index: the
    daemon finds the runs of the same work again. A problem that fails is told and left out.
    Raises DaemonError, EngineError, RequestError when the runs can't go on; what is finished is
    kept.
    """
    found: dict[int, Recording] = {}
    try:
        asyncio.run(_solve(problems, settings, _key(settings, work), config, found))
    except (KeyboardInterrupt, FlashEdgeError):
        done = f"{len(found)} of {len(problems)} runs are done and kept"
        output.note(f"{done}; the same command goes on")
        raise
    return tuple(found[i] for i in sorted(found))


def stored_runs(
    client: Any, pair: str, strategy: str, n: int, since: float, limit: int | None
) -> Iterator[Recording]:
    """The newest `limit` whole runs of a pair, strategy and n that the daemon has kept since."""
    from flashedge.cli.runs import stored_events
    from flashedge.runtime.records.recordings import recording_of

    left = limit
    for run in _listed(client, since):
        if left == 0:
            return
        if (run["pair"], run["strategy"], run["n"]) == (pair, strategy, n):
            told = (event for _, event in stored_events(client, run["id"]))
            recording = recording_of(run["id"], told)
            if recording is not None:
                left = None if left is None else left - 1
                yield recording


def right_answers(
    recordings: Iterable[Recording], answers: Mapping[str, str] | None
) -> tuple[frozenset[str], ...]:
    """Of each recording the answers that are right, compared as answers are in a vote.

    answers: by the problem's text; None: each run's own final answer is taken for right.
    """
    return asyncio.run(_right(tuple(recordings), answers))


# ---------------------------------------------------------------- inner


async def _solve(
    problems: Sequence[LabelledProblem],
    settings: Mapping[str, Any],
    key: str,
    config: Config,
    found: dict[int, Recording],
) -> None:
    from flashedge.batch.attempts import Attempts
    from flashedge.daemon import control as daemon_control
    from flashedge.runtime.drive.task_groups import first_error
    from flashedge.runtime.records.recordings import recording_of

    async with daemon_control.connect_async(config) as client:
        attempts = Attempts(client, key, settings, retry_failed=True)
        left = iter(problems)

        async def worker(advance: Callable[[int], None]) -> None:
            for problem in left:
                attempt = await attempts.run(problem.index, problem.text)
                if attempt.error is not None or attempt.run is None:
                    why = (attempt.error or {}).get("message", "no run")
                    output.note(f"left out: problem {problem.id}: {why}")
                else:
                    told = [e async for piece in client.events(attempt.run) for _, e in piece]
                    recording = recording_of(attempt.run, told)
                    if recording is None:
                        output.note(f"left out: problem {problem.id}: run {attempt.run} was cut")
                    else:
                        found[problem.index] = recording
                advance(1)

        try:
            with bar("recording", len(problems), unit="runs") as advance, first_error():
                async with asyncio.TaskGroup() as group:
                    for _ in range(config.max_running + 1):  # one waits, so that none idles
                        group.create_task(worker(advance))
        except asyncio.CancelledError:
            await attempts.cancel_open()
            raise


def _key(settings: Mapping[str, Any], work: str) -> str:
    """Names the runs."""
    said = repr((sorted(settings.items()), work))
    return "calibrate-" + hashlib.sha256(said.encode()).hexdigest()[:16]


def _listed(client: Any, since: float) -> Iterator[Mapping[str, Any]]:
    before = None
    while True:
        page = client.runs(limit=PAGE, before=before, status="finished")
        for run in page["data"]:
            if run["created_at"] < since:
                return
            yield run
        if not page.get("has_more"):
            return
        before = page["data"][-1]["id"]


async def _right(
    recordings: Sequence[Recording], answers: Mapping[str, str] | None
) -> tuple[frozenset[str], ...]:
    from flashedge.answers.workers.mathematics import Grader

    grader = Grader()
    try:
        found = []
        for recording in recordings:
            truth = recording.answer if answers is None else answers[recording.problem.strip()]
            said = sorted(recording.answers) if truth is not None else []
            found.append(frozenset([a for a in said if await grader.equal(a, truth or "")]))
        return tuple(found)
    finally:
        await grader.close()
