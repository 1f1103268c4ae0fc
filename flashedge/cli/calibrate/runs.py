"""The runs at full compute that `calibrate` replays: new ones, or those that are stored."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from flashedge.cli import output
from flashedge.cli.progress import show_bar
from flashedge.config import Config
from flashedge.errors import FlashEdgeError, RequestError

if TYPE_CHECKING:
    from flashedge.files.problems import LabelledProblem
    from flashedge.runtime.records.recordings import Recording


def run_problems(
    problems: Sequence[LabelledProblem], settings: Mapping[str, Any], work: str, config: Config
) -> tuple[Recording, ...]:
    """Run each problem once at full compute, or find the run of an earlier call in the store.

    settings: the request's fields. work: with them and a problem's index it identifies a run, so
    that the same call finds it again. A problem that fails is reported and left out. Raises
    DaemonError, EngineError, RequestError when the runs can't continue; finished runs are kept.
    """
    found: dict[int, Recording] = {}
    identity = repr((sorted(settings.items()), work))
    key = "calibrate-" + hashlib.sha256(identity.encode()).hexdigest()[:16]
    try:
        asyncio.run(_solve(problems, settings, key, config, found))
    except (KeyboardInterrupt, FlashEdgeError):
        done = f"{len(found)} of {len(problems)} runs are done and kept"
        output.note(f"{done}; the same command continues with the others")
        raise
    return tuple(found[i] for i in sorted(found))


def read_stored_runs(
    client: Any, pair: str, strategy: str, n: int, since: float, problems: Sequence[LabelledProblem]
) -> tuple[Recording, ...]:
    """The newest stored run at full compute of each problem, of those created after `since`."""
    from flashedge.cli.runs import find_runs, load_events
    from flashedge.runtime.records.recordings import build_recording

    texts = {problem.text for problem in problems}
    found: dict[str, Recording] = {}
    for run in find_runs(client, ("finished",)):  # the newest first
        if run["created_at"] < since:
            break
        if (run["pair"], run["strategy"], run["n"]) == (pair, strategy, n):
            log = (event for _, event in load_events(client, run["id"]))
            recording = build_recording(run["id"], log)
            if recording is not None and recording.problem.strip() in texts:
                found.setdefault(recording.problem.strip(), recording)
                if len(found) == len(texts):
                    break
    return tuple(found.values())


def keep_comparable(found: Sequence[Recording], what: str) -> tuple[Recording, ...]:
    """The runs with the settings that most of them have. Raises RequestError without runs."""
    counted = Counter(json.dumps(one.settings, sort_keys=True) for one in found)
    if not counted:
        raise RequestError(
            f"there is no run of {what} at full compute with a known answer",
            hint="leave out --from-runs, or solve the problems with --no-early-exit",
        )
    most = counted.most_common(1)[0][0]
    kept = tuple(one for one in found if json.dumps(one.settings, sort_keys=True) == most)
    if len(kept) < len(found):
        output.note(f"{len(found) - len(kept)} of {len(found)} runs have other options: left out")
    return kept


def find_right_answers(
    recordings: Iterable[Recording], answers: Mapping[str, str]
) -> tuple[frozenset[str], ...]:
    """The right ones among each recording's answers, compared as in a vote.

    answers: the known answer by the problem's text.
    """
    from flashedge.answers.workers.mathematics import MathGrader

    async def find() -> tuple[frozenset[str], ...]:
        grader = MathGrader()
        try:
            found = []
            for recording in recordings:
                truth = answers[recording.problem.strip()]
                given = sorted(recording.answers)
                found.append(frozenset([a for a in given if await grader.equal(a, truth)]))
            return tuple(found)
        finally:
            await grader.close()

    return asyncio.run(find())


async def _solve(
    problems: Sequence[LabelledProblem],
    settings: Mapping[str, Any],
    key: str,
    config: Config,
    found: dict[int, Recording],
) -> None:
    from flashedge.batch.attempts import Attempts
    from flashedge.client.follow import UNATTENDED, follow
    from flashedge.daemon import control as daemon_control
    from flashedge.runtime.drive.tasks import run_workers
    from flashedge.runtime.records.recordings import build_recording

    async with daemon_control.connect_async(config, name="calibrate") as client:
        attempts = Attempts(client, key, settings, retry_failed=True)

        async def record(problem: LabelledProblem) -> None:
            attempt = await attempts.run(problem.index, problem.text)
            if attempt.error is not None or attempt.run is None:
                why = (attempt.error or {}).get("message", "no run")
                output.note(f"left out: problem {problem.id}: {why}")
            else:
                async with aclosing(follow(client, attempt.run, UNATTENDED)) as pieces:
                    log = [event async for piece in pieces for _, event in piece]
                recording = build_recording(attempt.run, log)
                if recording is None:
                    output.note(f"left out: problem {problem.id}: run {attempt.run} was cut")
                else:
                    found[problem.index] = recording
            advance(1)

        try:
            with show_bar("recording", len(problems), unit="runs") as advance:
                # one more than run: it waits in the queue, so that no slot idles
                await run_workers(config.max_running + 1, record, problems)
        except asyncio.CancelledError:
            await attempts.cancel_open()
            raise
