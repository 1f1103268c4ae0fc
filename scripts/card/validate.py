"""Runs every part of the validation of a card, and writes one report. See validate.sh.

Each part is a process of its own. Its output is kept in FOLDER/logs, its result in FOLDER/parts.
A part that passed is not run again, so that the same command goes on where it was cut off; a part
that failed is. After each part report.md and report.json are written anew. Exits 1 if one failed.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from flashedge.config import load_config
from flashedge.engine.platform import runs_on_cpu
from scripts.bench.daemon import DATA, ROOT
from scripts.card.machine import describe_machine
from scripts.card.parts import Part, Plan, list_parts
from scripts.card.report import format_report

PASSED, FAILED = "passed", "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    """How a part ended."""

    name: str
    status: str
    seconds: float
    faults: list[str]
    """Why it failed; empty if it passed."""
    figures: Any = None
    """The JSON of its last line, if it prints one."""


def main() -> None:
    plan = parse_plan(argparse.ArgumentParser(description=__doc__.splitlines()[0]), "card")
    run_parts(plan, list_parts(plan))


def run_parts(plan: Plan, parts: tuple[Part, ...]) -> NoReturn:
    """Run the parts that have not passed yet, and exit."""
    for folder in ("logs", "parts"):
        (plan.output / folder).mkdir(parents=True, exist_ok=True)
    machine = describe_machine()
    results: list[PartResult] = []
    for part in parts:
        found = read_result(plan, part)
        if found is None or found.status != PASSED:
            print(f"== {part.name}: {part.question}", flush=True)
            failed = [result.name for result in results if result.status != PASSED]
            found = skip_part(part) if part.needs in failed else run_part(plan, part)
            write_result(plan, part, found)
        print(f"{part.name}: {found.status}, {found.seconds:.0f} s", flush=True)
        results.append(found)
        write_report(plan, machine, parts, results)
    print(f"wrote {plan.output / 'report.md'} and report.json")
    failed = [result.name for result in results if result.status != PASSED]
    print(json.dumps({"passed": len(results) - len(failed), "failed": failed}))
    sys.exit(1 if failed else 0)


def skip_part(part: Part) -> PartResult:
    faults = [f"not run, since {part.needs!r} has not passed"]
    return PartResult(name=part.name, status=FAILED, seconds=0.0, faults=faults, figures=None)


def run_part(plan: Plan, part: Part) -> PartResult:
    log = plan.output / "logs" / f"{part.name.replace(' ', '-')}.log"
    began = time.monotonic()
    figures, faults = None, []
    try:
        with log.with_suffix(".err").open("wb") as err:
            done = subprocess.run(
                part.command,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=err,
                timeout=part.limit_s,
                check=False,
            )
    except subprocess.TimeoutExpired as late:
        log.write_bytes(late.stdout or b"")
        faults = [f"it took more than {part.limit_s:.0f} s"]
    else:
        log.write_bytes(done.stdout)
        if done.returncode:
            faults = [f"exit code {done.returncode}: {read_last_line(log)}"]
        if part.has_figures:
            try:
                figures = parse_figures(done.stdout.decode(errors="replace"))
            except ValueError:
                faults = faults or ["its last line is not JSON"]
            else:
                faults = faults or part.find_faults(figures)
    return PartResult(
        name=part.name,
        status=FAILED if faults else PASSED,
        seconds=round(time.monotonic() - began, 1),
        faults=faults,
        figures=figures,
    )


def parse_figures(output: str) -> dict[str, Any]:
    """Parse the whole output as JSON, or else its last line. A list becomes {"value": list}.

    Raises ValueError.
    """
    try:
        found = json.loads(output)
    except ValueError:
        found = json.loads((output.strip().splitlines() or [""])[-1])
    return found if isinstance(found, dict) else {"value": found}


def read_last_line(log: Path) -> str:
    """The last line that the part wrote to its error output, else to its output."""
    for path in (log.with_suffix(".err"), log):
        lines = path.read_text(errors="replace").strip().splitlines()
        if lines:
            return lines[-1][:300]
    return "it wrote nothing"


# ---------------------------------------------------------------- files


def _find_result(plan: Plan, part: Part) -> Path:
    return plan.output / "parts" / f"{part.name.replace(' ', '-')}.json"


def read_result(plan: Plan, part: Part) -> PartResult | None:
    """Read the result of an earlier call with the same command."""
    path = _find_result(plan, part)
    if not path.exists():
        return None
    stored = json.loads(path.read_text())
    if stored.pop("command") != list(part.command):
        return None
    return PartResult(**stored)


def write_result(plan: Plan, part: Part, result: PartResult) -> None:
    stored = {**asdict(result), "command": part.command}
    _find_result(plan, part).write_text(json.dumps(stored, indent=1))


def write_report(
    plan: Plan, machine: dict[str, str], parts: tuple[Part, ...], results: list[PartResult]
) -> None:
    whole = {
        "machine": machine,
        "pair": plan.pair,
        "rehearsal": plan.rehearse,
        "parts": [asdict(result) for result in results],
    }
    (plan.output / "report.json").write_text(json.dumps(whole, indent=1))
    (plan.output / "report.md").write_text(format_report(whole, parts))


def parse_plan(parser: argparse.ArgumentParser, name: str) -> Plan:
    """Add the options of a plan, and read the command line. name: begins that of its folder."""
    parser.add_argument("--pair", help="default: the setting `pair`")
    parser.add_argument("--problems", type=Path, help="JSON lines of problem and answer")
    parser.add_argument("--output", type=Path, help=f"default: runs/{name}-PAIR")
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, with the bundled pair")
    asked = parser.parse_args()
    if not asked.rehearse and runs_on_cpu():
        parser.error("this machine has no card; --rehearse runs every part on the CPU")
    pair = "bundled" if asked.rehearse else load_config({"pair": asked.pair}).pair
    if asked.problems is None and pair != "bundled":
        parser.error(f"--problems is needed: the pair {pair} has no problems of its own")
    name = f"{'rehearsal' if asked.rehearse and name == 'card' else name}-{pair}"
    return Plan(
        pair=pair,
        problems=(asked.problems or DATA / "heldout.jsonl").resolve(),
        output=(asked.output or ROOT / "runs" / name).resolve(),
        rehearse=asked.rehearse,
    )


if __name__ == "__main__":
    main()
