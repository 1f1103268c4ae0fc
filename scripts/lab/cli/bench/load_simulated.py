"""`bench load --simulated`: the same load on a simulated card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flashedge.cli import output
from flashedge.config import load_config
from flashedge.errors import RequestError
from scripts.lab.cli.bench.load_view import print_report

if TYPE_CHECKING:
    from scripts.lab.benchmark.load.plan import PlannedProgram
    from scripts.lab.benchmark.load.slo import Slo

PAIR, GPU = "math-1.5b+skywork-1.5b", "rtx4090"
PROBLEMS = 40

Plan = Callable[[int], "Sequence[PlannedProgram]"]
"""Draws the programs, given the number of problems."""


def check_unused(**flags: object) -> None:
    """Raises RequestError when an option of --simulated is given without it."""
    for name, value in flags.items():
        if value is not None:
            raise RequestError(f"--{name} needs --simulated", hint="add --simulated", param=name)


def check_real_only(**flags: object) -> None:
    """Raises RequestError when an option of a real daemon is given with --simulated."""
    for name, value in flags.items():
        if value is not None:
            flag = "--" + name.replace("_", "-")
            raise RequestError(
                f"{flag} has no meaning with --simulated", hint=f"leave {flag} out", param=name
            )


def simulate_load(
    plan: Plan,
    slo: Slo,
    *,
    pair: str | None,
    gpu: str | None,
    policy: str | None,
    strategy: str,
    n: int,
    limit: int | None,
    about: dict[str, Any],
    as_json: bool,
) -> None:
    """Simulate the load and print its report. Raises as `benchmark.simulate.build_bench`."""
    from flashedge.types import POLICY_NAMES
    from scripts.lab.benchmark.load.report import build_report
    from scripts.lab.benchmark.load.virtual_load import build_virtual_load, measure_load_dispersion
    from scripts.lab.benchmark.load.virtual_server import run_virtual_load
    from scripts.lab.benchmark.simulate import Question, build_bench

    if policy is not None and policy not in POLICY_NAMES:
        known = ", ".join(POLICY_NAMES)
        raise RequestError(f"there is no policy {policy!r}", hint=f"known: {known}", param="policy")
    config = load_config()
    if policy is not None:
        config = replace(config, scheduling_policy=policy)
    question = Question(
        gpu=gpu or GPU,
        pair=pair or PAIR,
        strategy=strategy,
        n=n,
        problems=limit or PROBLEMS,
        share=None,
    )
    load = build_virtual_load(build_bench(question, config), config)
    records = run_virtual_load(load, plan(len(load.search_rows)))
    dispersion = {kind: found.to_json() for kind, found in measure_load_dispersion(load).items()}
    settings = {
        **about,
        "simulated": True,
        "pair": question.pair,
        "gpu": question.gpu,
        "policy": config.scheduling_policy,
        "dispersion": dispersion,
    }
    report = {"load": settings, **build_report(records, slo)}
    if as_json:
        output.print_json(report)
        return
    output.say(
        f"SIMULATED: {question.pair} on {question.gpu}, policy {config.scheduling_policy}. This is"
        " a roofline model of the card in virtual time, not a measurement."
    )
    for kind, row in dispersion.items():
        output.say(
            f"Lengths of one {'path' if kind == 'search' else 'answer'} ({kind}):"
            f" {row['mean_tokens']:.0f} tokens, coefficient of variation {row['within_cv']:.2f}"
            f" within a prompt, {row['between_cv']:.2f} between prompts."
        )
    print_report(report)
