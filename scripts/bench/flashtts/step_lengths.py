"""How long is the longest of n steps, observed and with the smooth tail?

    python -m scripts.bench.flashtts.step_lengths [--n 8 64 512]

Draws n lengths of each problem and step of which all eight samples are of one kind (last step or
not), and prints the mean of longest / mean, and the mean tokens of a path. The last line is JSON.
"""

import argparse
from random import Random
from statistics import fmean

from scripts.bench.daemon import report
from scripts.bench.flashtts.study import format_table
from scripts.bench.smoke import parse_arguments
from scripts.lab.benchmark.lengths import LENGTHS, group_lengths, load_trace
from scripts.lab.sim.model import StepTrace

SAMPLES = 8


def measure_longest(trace: StepTrace, n: int) -> float:
    """Mean of the longest of n lengths over their mean. Steps of which the observed trace has all
    samples are drawn with a fixed seed."""
    draw, ratios = Random(0), []
    for row, observed in zip(trace.rows, load_trace("math").rows, strict=True):
        groups = group_lengths(row)
        for key, group in group_lengths(observed).items():
            if len(group) == SAMPLES:
                lengths = draw.choices(groups[key], k=n)
                ratios.append(max(lengths) / fmean(lengths))
    return fmean(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[8, 64, 512])
    widths = parse_arguments(parser, n=[8]).n
    found = {
        lengths: {n: round(measure_longest(load_trace("math", lengths), n), 2) for n in widths}
        for lengths in LENGTHS
    }
    paths = {
        lengths: fmean(sum(s) for row in load_trace("math", lengths).rows for s in row.step_tokens)
        for lengths in LENGTHS
    }
    rows = [
        (lengths, *ratios.values(), f"{paths[lengths]:.1f}") for lengths, ratios in found.items()
    ]
    head = ("lengths", *(f"n = {n}" for n in widths), "tokens a path")
    print(format_table(head, rows, "Longest of n steps / their mean"))
    report(longest_over_mean=found, tokens_a_path=paths)


if __name__ == "__main__":
    main()
