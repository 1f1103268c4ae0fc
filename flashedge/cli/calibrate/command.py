"""`calibrate`: from labelled problems, or runs that are kept, to early exits that lose nothing."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flashedge.cli import output
from flashedge.cli.daemon_cmds import ready_client
from flashedge.config import load_config
from flashedge.errors import RequestError

if TYPE_CHECKING:
    from flashedge.certainty.calibration import Choice, Figures
    from flashedge.runtime.records.recordings import Recording

KNOWN, WHOLE = "known answers", "answers at full compute"
MAX_N = 256  # a run at full compute tells so many checkpoints


def calibrate(
    problems: Annotated[
        Path | None, typer.Argument(help="JSON lines of problem and answer.")
    ] = None,
    strategy: Annotated[
        str, typer.Option(help="self_consistency, mcts-10, …: what is to stop early.")
    ] = "self_consistency",
    n: Annotated[int | None, typer.Option("-n", help="Paths of full compute.")] = None,
    accuracy_floor: Annotated[
        float, typer.Option(help="Share of problems that may be lost, 0.01 is a point.")
    ] = 0.0,
    policy: Annotated[
        str | None,
        typer.Option(help="static, every_5, every_step, length, initial_curve, dynamic_curve."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many problems or runs.")] = None,
    from_runs: Annotated[
        bool, typer.Option("--from-runs", help="Of runs that are kept; solves nothing.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write no calibration.")] = False,
    plot: Annotated[Path | None, typer.Option(help="A picture, .svg or .png.")] = None,
    pair: Annotated[str | None, typer.Option(help="Pair to calibrate for.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the calibration.")] = False,
) -> None:
    """Find when a strategy may stop early; `solve --early-exit` then does as was found."""
    from flashedge.certainty.calibration import Calibrator
    from flashedge.cli.calibrate.runs import right_answers, run_problems, stored_runs
    from flashedge.cli.calibrate.view import draw, print_choice
    from flashedge.files.problems import read_labelled
    from flashedge.models.fingerprint import changed_at, pair_fingerprint
    from flashedge.models.registry import find_pair
    from flashedge.runtime.request.calibrations import Calibration, save_calibration
    from flashedge.runtime.request.early_exit import ExitOptions, rule_of
    from flashedge.runtime.request.strategies import watched_options

    strategy, n = _asked(strategy, n)
    usual = rule_of(ExitOptions(), strategy)
    _check(accuracy_floor, policy, plot)
    if problems is None and not from_runs:
        raise RequestError("name a file of problems", hint="or --from-runs", param="problems")
    asked = () if problems is None else read_labelled(problems, None if from_runs else limit)
    config = load_config({"pair": pair})
    with ready_client(config) as client:
        served = find_pair(client.status()["pair"], config)
        if pair is not None and served.name != pair:
            raise RequestError(
                f"the daemon serves the pair {served.name!r}, not {pair!r}",
                hint=f"flashedge down, then flashedge up --pair {pair}",
                param="pair",
            )
        models = pair_fingerprint(served, config)
        if from_runs:
            since = changed_at(served, config)
            found = tuple(stored_runs(client, served.name, strategy, n, since, limit))
        else:
            settings = {"strategy": strategy, "n": n, "early_exit": False, "pair": served.name}
            if watched := watched_options(strategy, n):
                settings["options"] = watched
            work = f"{models} {_hash(problems)}"
            found = run_problems(asked, settings, work, config)
    answers = {problem.text: problem.answer for problem in asked} or None
    found = _usable(found, answers, f"{strategy}-{n} on {served.name}")
    right = right_answers(found, answers)
    traces = [one.trace(said) for one, said in zip(found, right, strict=True)]
    measures = [name for name, _ in usual.thresholds]
    calibrator = Calibrator(traces, policy or usual.policy, measures)
    choice = calibrator.choose(accuracy_floor)
    made = Calibration(
        pair=served.name,
        strategy=strategy,
        fingerprint=models,
        settings=found[0].settings,
        rule=choice.rule,
        provenance={
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "origin": "runs" if from_runs else "problems",
            "reference": WHOLE if answers is None else KNOWN,
            "problems": problems and {"name": problems.name, "sha256": _hash(problems)},
            "num_problems": len({one.problem for one in found}),
            "num_runs": len(found),
            "n": n,
            "policy": policy or usual.policy,
            "accuracy_floor": accuracy_floor,
            **_figures(choice),
        },
    )
    saved = None if dry_run else save_calibration(made, config)
    if plot is not None:
        for path in draw(plot, choice, traces, measures[0]):
            output.note(f"wrote {path}")
    if as_json:
        output.print_json({**made.to_json(), "saved": None if saved is None else str(saved)})
    else:
        print_choice(made, choice, calibrator.figures(usual))
        print(f"wrote {saved}" if saved else "nothing written: --dry-run")


# ---------------------------------------------------------------- inner


def _asked(strategy: str, n: int | None) -> tuple[str, int]:
    """Name and n. Raises NotFound, RequestError."""
    from flashedge.runtime.request.strategies import defaults_of
    from flashedge.search.catalog import parse_strategy

    name, suffix = parse_strategy(strategy)
    if suffix is not None and n is not None and suffix != n:
        raise RequestError(f"--strategy {strategy} and -n {n} contradict each other", param="n")
    chain = name == "probed_cot"
    count = n or suffix or defaults_of(name).get("n", 16)
    if chain and count != 1:
        raise RequestError("probed_cot is one chain", hint="leave -n out", param="n")
    if not chain and not 2 <= count <= MAX_N:
        raise RequestError(f"n is {count}; to calibrate it must be in [2, {MAX_N}]", param="n")
    return name, count


def _check(floor: float, policy: str | None, plot: Path | None) -> None:
    """Raises RequestError or ConfigError before anything is run."""
    from flashedge.certainty.rules import POLICIES
    from flashedge.plots import SUFFIXES
    from flashedge.runtime.request.checks import check_choice, check_float

    check_float("accuracy_floor", floor, 0.0, 1.0)
    if policy is not None:
        check_choice("policy", policy, POLICIES)
    if plot is not None and plot.suffix.lower() not in SUFFIXES:
        raise RequestError(f"--plot {plot} must end with {' or '.join(SUFFIXES)}", param="plot")


def _usable(
    found: Sequence[Recording], answers: Mapping[str, str] | None, what: str
) -> tuple[Recording, ...]:
    """Those with a known answer, if any are known, of the settings that most have. Raises
    RequestError when none is left."""
    known = [one for one in found if answers is None or one.problem.strip() in answers]
    counted = Counter(json.dumps(one.settings, sort_keys=True) for one in known)
    if not counted:
        raise RequestError(
            f"there is no run of {what} at full compute"
            + (" with a known answer" if answers else ""),
            hint="give problems to run, or solve some with --no-early-exit",
        )
    most = counted.most_common(1)[0][0]
    kept = tuple(one for one in known if json.dumps(one.settings, sort_keys=True) == most)
    if len(kept) < len(found):
        output.note(
            f"{len(found) - len(kept)} of {len(found)} runs are of other problems or options"
        )
    return kept


def _hash(path: Path | None) -> str:
    return "" if path is None else hashlib.sha256(path.read_bytes()).hexdigest()


def _figures(choice: Choice) -> dict[str, Any]:
    """Of the choice on all runs, and of choices on runs that they were not made on."""
    return {
        "chosen": _told(choice.figures),
        "validated": None if choice.validated is None else _told(choice.validated),
    }


def _told(found: Figures) -> dict[str, Any]:
    return {
        "accuracy_before": found.full_accuracy,
        "accuracy_after": found.accuracy,
        "difference_95": list(found.interval),
        "tokens_before": found.full_tokens,
        "tokens_after": found.tokens,
        "saved": found.saved,
    }
