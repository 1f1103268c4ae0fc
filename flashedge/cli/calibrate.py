"""`calibrate`: find a rule for early exits that keeps accuracy, from problems with answers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from flashedge.cli import output
from flashedge.cli.connection import connect_ready
from flashedge.cli.progress import show_bar
from flashedge.client.words import format_count
from flashedge.config import Config, load_config
from flashedge.errors import Conflict, FlashEdgeError, RequestError

if TYPE_CHECKING:
    from flashedge.certainty.calibration import Choice, Comparison
    from flashedge.certainty.policies import Rule
    from flashedge.files.problems import LabelledProblem
    from flashedge.plots import Series
    from flashedge.runtime.records.recordings import Recording
    from flashedge.runtime.request.calibrations import Calibration

COLUMNS = (
    "",
    "accuracy",
    "full accuracy",
    "difference, 95 %",
    "loss at most",
    "tokens",
    "full tokens",
    "saved",
)
LABELS: Mapping[str, Any] = {"title": "Tokens to accuracy", "x": "tokens of a run", "y": "accuracy"}
MAX_N = 256
"""Largest `-n`. Chosen by hand: the 299 problems that a loss of 0.01 takes cost 76,544 paths."""
EPILOG = """\
Examples:
  flashedge calibrate problems.jsonl --strategy self_consistency -n 30
  flashedge calibrate problems.jsonl --from-runs --dry-run
  flashedge calibrate problems.jsonl --strategy mcts-20 --max-loss 0.02 --plot mcts.svg
"""


def calibrate(
    problems: Annotated[Path, Argument(metavar="FILE", help="JSON lines with problem and answer.")],
    strategy: Annotated[
        str, Option(metavar="NAME", help="The strategy that is to stop early, as for `solve`.")
    ] = "self_consistency",
    n: Annotated[int | None, Option("--n", "-n", metavar="N", help="Paths of a full run.")] = None,
    max_loss: Annotated[
        float,
        Option(
            metavar="SHARE",
            help="Allow at most this loss of accuracy, with 95 % confidence; 0.01 is one point.",
        ),
    ] = 0.01,
    policy: Annotated[
        str | None,
        Option(metavar="NAME", help="When to check: static (once), every_5 or every_step."),
    ] = None,
    limit: Annotated[int | None, Option(metavar="N", min=1, help="Most problems to use.")] = None,
    from_runs: Annotated[
        bool, Option("--from-runs", help="Use stored runs of these problems; solve none.")
    ] = False,
    replace: Annotated[
        bool, Option("--replace", help="Replace a stored calibration even if it is better.")
    ] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Do not save the result.")] = False,
    plot: Annotated[
        Path | None, Option(metavar="FILE", help="Draw tokens against accuracy as .svg or .png.")
    ] = None,
    pair: Annotated[str | None, Option(metavar="PAIR", help="Pair to calibrate for.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Find when a strategy may stop early; `solve --early-exit` then stops there.

    It takes at least 299 problems with known answers to show that at most one point of accuracy is
    lost.
    """
    from flashedge.certainty.calibration import Calibrator
    from flashedge.certainty.policies import POLICIES
    from flashedge.files.problems import read_labelled
    from flashedge.plots import check_suffix, draw_plot
    from flashedge.runtime.request.calibrations import (
        Calibration,
        find_calibration,
        save_calibration,
    )
    from flashedge.runtime.request.early_exit import build_paper_rule
    from flashedge.runtime.request.values import check_choice, check_float

    strategy, n = _parse_strategy(strategy, n)
    check_float("max_loss", max_loss, 0.001, 0.5)
    if policy is not None:
        check_choice("policy", policy, POLICIES)
    if plot is not None:
        check_suffix(plot)
    distinct: dict[str, LabelledProblem] = {}
    for problem in read_labelled(problems):
        distinct.setdefault(problem.text, problem)
    labelled = tuple(distinct.values())[:limit]
    _check_enough(len(labelled), max_loss)
    config = load_config({"pair": pair})
    digest = hashlib.sha256(problems.read_bytes()).hexdigest()
    pair_name, fingerprint, found = _collect_runs(
        labelled, digest, strategy, n, pair, from_runs, config
    )
    _check_enough(len(found), max_loss)
    right = find_right_answers(found, {problem.text: problem.answer for problem in labelled})
    traces = [one.build_trace(known) for one, known in zip(found, right, strict=True)]
    usual = build_paper_rule(strategy)
    measures = [name for name, _ in usual.thresholds]
    calibrator = Calibrator(traces, policy or usual.policy, measures)
    choice = calibrator.choose(max_loss)
    made = Calibration(
        pair=pair_name,
        strategy=strategy,
        fingerprint=fingerprint,
        settings=found[0].settings,
        rule=choice.rule,
        provenance={
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "origin": "runs" if from_runs else "problems",
            "problems": {"name": problems.name, "sha256": digest},
            "n": n,
            "policy": policy or usual.policy,
            "max_loss": max_loss,
            "num_problems": choice.comparison.runs,
            "chosen": describe_comparison(choice.comparison),
            "validated": choice.validated and describe_comparison(choice.validated),
            "smaller_cap": choice.smaller_cap
            and {"cap": choice.smaller_cap[0], **describe_comparison(choice.smaller_cap[1])},
        },
    )
    outcome, better, saved = "no_rule_qualifies", None, None
    if made.rule is not None:
        stored = find_calibration(pair_name, strategy, config)
        better = stored if stored is not None and stored.is_better_than(made) else None
        if dry_run:
            outcome = "dry_run"
        elif better is not None and not replace:
            outcome = "kept_stored"
        else:
            outcome, saved = "written", save_calibration(made, config)
    if plot is not None:
        draw_plot(plot, build_frontier(choice), **LABELS, points=True)
        output.note(f"wrote {plot}")
    if as_json:
        output.print_json({**made.to_json(), "outcome": outcome, "saved": saved and str(saved)})
    else:
        print_choice(made, choice, calibrator.compare(usual), better)
        if saved is not None:
            output.say(f"wrote {saved}")
        elif choice.rule is None:
            output.say("no rule qualifies: runs keep their full length, and no rule was saved")
    if better is not None and outcome == "kept_stored":
        raise Conflict(
            f"the stored calibration stays: it was made on {better.num_problems} problems and"
            f" saves {better.saved:.1%}, the new one on {len(found)} and saves"
            f" {choice.comparison.saved:.1%}",
            hint="to replace it, add --replace",
        )


def _parse_strategy(strategy: str, n: int | None) -> tuple[str, int]:
    """The strategy's name and its n at full compute. Raises NotFound, RequestError."""
    from flashedge.runtime.request.strategies import find_defaults
    from flashedge.runtime.request.validation import USUAL_PATHS
    from flashedge.search.catalog import parse_strategy

    name, suffix = parse_strategy(strategy)
    if suffix is not None and n is not None and suffix != n:
        raise RequestError(f"--strategy {strategy} and -n {n} contradict each other", param="n")
    is_chain = name == "probed_cot"
    given = suffix if n is None else n
    count = find_defaults(name).get("n", USUAL_PATHS) if given is None else given
    if is_chain and count != 1:
        raise RequestError("probed_cot is one chain", hint="leave -n out", param="n")
    if not is_chain and not 2 <= count <= MAX_N:
        raise RequestError(f"n is {count}; to calibrate it must be in [2, {MAX_N}]", param="n")
    return name, count


def _check_enough(count: int, max_loss: float) -> None:
    """Raises RequestError if so few distinct problems can't show that the loss is small."""
    from flashedge.certainty.calibration import count_needed_problems

    needed = count_needed_problems(max_loss)
    if count >= needed:
        return
    more = f"give {needed - count} more"
    if max_loss < 0.05:
        more += f", or allow a larger loss: --max-loss 0.05 needs {count_needed_problems(0.05)}"
    raise RequestError(
        f"{format_count(count, 'distinct problem')} {'is' if count == 1 else 'are'} too few:"
        f" it takes {needed} to show that at most {max_loss:.1%} of accuracy is lost",
        hint=more,
        param="problems",
    )


def _collect_runs(
    problems: Sequence[LabelledProblem],
    digest: str,
    strategy: str,
    n: int,
    pair: str | None,
    from_runs: bool,
    config: Config,
) -> tuple[str, str, tuple[Recording, ...]]:
    """(the pair's name, its fingerprint, a recording of each problem that has one). Raises
    RequestError if there is no recording."""
    from flashedge.models.folders import find_last_change_s, fingerprint_pair
    from flashedge.models.registry import find_pair, list_files
    from flashedge.runtime.request.strategies import find_watched_options

    with connect_ready(config) as client:
        served = find_pair(pair or client.status()["pair"], config)
        fingerprint = fingerprint_pair(served, config)
        if from_runs:
            # Runs don't store the pair's fingerprint. It is still the same for those that were made
            # after the last change of the pair's files and options.
            changes = [file.stat().st_mtime for file in list_files(config)]
            since = max(find_last_change_s(served, config), *changes)
            found = read_stored_runs(client, served.name, strategy, n, since, problems)
        else:
            settings = {"strategy": strategy, "n": n, "early_exit": False, "pair": served.name}
            if watched := find_watched_options(strategy, n):
                settings["options"] = watched
            found = run_problems(problems, settings, f"{fingerprint} {digest}", config)
    if not found:
        told = "leave out --from-runs, or solve the problems with --no-early-exit"
        raise RequestError(
            f"there is no run of {strategy}-{n} on {served.name} at full compute",
            hint=told if from_runs else "a message above says of each problem why",
        )
    return served.name, fingerprint, keep_comparable(found)


def run_problems(
    problems: Sequence[LabelledProblem], settings: Mapping[str, Any], inputs: str, config: Config
) -> tuple[Recording, ...]:
    """Run each problem once at full compute, or find the run of an earlier call in the store.

    settings: the request's fields. inputs: names the models and problems; a later call with equal
    settings and inputs finds the runs again. A problem that fails is reported and left out. Raises
    DaemonError, EngineError, RequestError when the runs can't continue; finished runs are kept.
    """
    found: dict[int, Recording] = {}
    identity = repr((sorted(settings.items()), inputs))
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
    """The newest stored run of each problem at full compute, from `since` on (unix seconds)."""
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


def keep_comparable(found: Sequence[Recording]) -> tuple[Recording, ...]:
    """The largest group of runs with the same settings. found: at least one run."""
    counted = Counter(json.dumps(one.settings, sort_keys=True) for one in found)
    most = counted.most_common(1)[0][0]
    kept = tuple(one for one in found if json.dumps(one.settings, sort_keys=True) == most)
    if len(kept) < len(found):
        output.note(f"left out {len(found) - len(kept)} of {len(found)} runs: their options differ")
    return kept


def find_right_answers(
    recordings: Iterable[Recording], answers: Mapping[str, str]
) -> tuple[frozenset[str], ...]:
    """The answers of each recording that equal the known one, compared as in a vote.

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
    """Run the problems, and put each recording into `found` under its problem's index."""
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
                # The run of the additional worker waits in the queue, so that no slot idles.
                await run_workers(config.max_running + 1, record, problems)
        except asyncio.CancelledError:
            await attempts.cancel_open()
            raise


def print_choice(
    found: Calibration, choice: Choice, usual: Comparison, stored: Calibration | None
) -> None:
    """Print the rule and its figures on stdout, and the plot and advice on stderr.

    usual: how the strategy's uncalibrated rule fares. stored: an earlier calibration that is
    better, if there is one.
    """
    from flashedge.plots import draw_text_plot

    n, max_loss = found.provenance["n"], found.provenance["max_loss"]
    output.note(
        f"{found.strategy} on {found.pair}, n {n}: {found.num_problems} problems,"
        f" at most {max_loss:.1%} of accuracy may be lost"
    )
    series = build_frontier(choice)
    if sum(map(len, series.values())) > 2:  # full compute and the chosen rule are always there
        width = min(100, shutil.get_terminal_size().columns)
        output.note(draw_text_plot(series, **LABELS, width=width, height=18))
    output.say(f"rule: {describe_rule(choice.rule)}")
    compared = {"chosen": choice.comparison} if choice.rule is not None else {}
    if choice.validated is not None:
        compared["cross-validated"] = choice.validated
    if choice.smaller_cap is not None:
        cap, smaller = choice.smaller_cap
        compared[f"smaller cap: n {cap}"] = smaller
    compared["uncalibrated"] = usual
    rows = [_format_row(name, describe_comparison(one)) for name, one in compared.items()]
    if stored is not None:
        name = f"stored ({stored.num_problems} problems)"
        rows.append(_format_row(name, stored.provenance["chosen"]))
    output.print_table(COLUMNS, rows, "")
    if stored is not None:
        output.say(f"stored rule: {describe_rule(stored.rule)} ({stored.date})")
    if choice.rule is None:
        advice = f"no rule keeps the loss below {max_loss:.1%} and saves more than a smaller n"
        if choice.smaller_cap is not None:
            cap, smaller = choice.smaller_cap
            advice += f"; -n {cap} saves {smaller.saved:.1%} within the same bound"
        advice += ". `--early-exit` without a calibration uses the strategy's defaults"
        output.note(advice)


def describe_rule(rule: Rule | None) -> str:
    if rule is None:
        return "none"
    least = " and ".join(f"{name} at least {value:g}" for name, value in rule.thresholds)
    return f"{rule.policy} from {rule.detect} on: {least}"


def build_frontier(choice: Choice) -> Series:
    """The plot's series of points (tokens of a run, accuracy). `even` has one for each n at which
    all runs are cut, and one for full compute. `rules` has the rules that no other rule beats."""
    chosen = choice.comparison
    return {
        "even": [(p.tokens, p.accuracy) for p in choice.even]
        + [(chosen.full_tokens, chosen.full_accuracy)],
        "rules": [(p.tokens, p.accuracy) for p in choice.frontier],
        "chosen": [(chosen.tokens, chosen.accuracy)],
    }


def describe_comparison(found: Comparison) -> dict[str, Any]:
    """A comparison as a calibration stores it."""
    return {
        "accuracy_before": found.full_accuracy,
        "accuracy_after": found.accuracy,
        "difference_95": list(found.interval),
        "loss_bound": found.loss_bound,
        "tokens_before": found.full_tokens,
        "tokens_after": found.tokens,
        "saved": found.saved,
    }


def _format_row(name: str, found: Mapping[str, Any]) -> tuple[object, ...]:
    before, after = found["accuracy_before"], found["accuracy_after"]
    low, high = found["difference_95"]
    return (
        name,
        f"{after:.1%}",
        f"{before:.1%}",
        f"{after - before:+.1%} [{low:+.1%}, {high:+.1%}]",
        f"{found['loss_bound']:.1%}",
        f"{found['tokens_after']:,.0f}",
        f"{found['tokens_before']:,.0f}",
        f"{found['saved']:.1%}",
    )
