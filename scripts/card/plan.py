"""Print how a pair would start on a card: the memory plan in MiB and vLLM's start arguments.

    python -m scripts.card.plan                          # five pairs on cards of 16, 24 and 32 GB
    python -m scripts.card.plan PAIR ... --gpu rtx4090   # others; --args prints the arguments too

It needs neither the card nor the models' files. The figures of the engines are estimates.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flashedge.config import Config, load_config
from flashedge.engine.vllm.engine_options import build_options
from flashedge.errors import ConfigError
from flashedge.models.memory.card_memory import CardMemory, build_idle_card
from flashedge.models.memory.fit import MemoryPlan, find_need, plan_memory, set_sizes
from flashedge.models.registry import find_pair
from flashedge.models.specs import ModelSpec
from scripts.lab.benchmark.devices import find_card

CARDS = ("rtx4080", "rtx4090", "rtx5090")
"""16, 24 and 32 GB."""

PAIRS = (
    "math-1.5b+skywork-1.5b",
    "qwen-7b-awq+skywork-1.5b",
    "math-7b+skywork-1.5b",
    "qwen3-8b+skywork-1.5b",
    "qwen3-8b-fp8+prm-7b-fp8",
)
COLUMNS = (
    "card",
    "pair",
    "usable",
    "weights",
    "context",
    "step",
    "graphs",
    "margin",
    "KV",
    "sequences",
)


def list_row(pair: str, card: CardMemory, plan: MemoryPlan) -> tuple[str, ...]:
    """The plan in MiB; generator + verifier where both have a share."""
    engines = plan.need.engines
    margin = [e.overhead - e.context - e.step - e.graphs for e in engines]

    def both(sizes: Iterator[int] | list[int]) -> str:
        return " + ".join(str(size >> 20) for size in sizes)

    return (
        f"{card.name}",
        pair,
        str(card.free_bytes >> 20),
        both([e.weights for e in engines]),
        both([e.context for e in engines]),
        both([e.step for e in engines]),
        both([e.graphs for e in engines]),
        both(margin),
        both(list(plan.kv_bytes)),
        str(plan.need.sequences),
    )


def list_start_args(pair: str, plan: MemoryPlan, config: Config) -> dict[str, dict[str, Any]]:
    """vLLM's start arguments of both engines, by role."""
    found, own = find_pair(pair, config), set_sizes(config, plan.kv_bytes, plan.need.sequences)
    roles: tuple[tuple[str, ModelSpec], ...] = (
        ("generator", found.generator),
        ("verifier", found.verifier),
    )
    return {
        name: build_options(
            name, spec, Path(spec.source), kv_bytes, sum(plan.kv_bytes), own, on_card=True
        ).list_args()
        for (name, spec), kv_bytes in zip(roles, plan.kv_bytes, strict=True)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pairs", nargs="*", default=PAIRS, metavar="PAIR")
    parser.add_argument("--gpu", action="append", help="a card (rtx4090); may be repeated")
    parser.add_argument("--args", action="store_true", help="print vLLM's start arguments too")
    options = parser.parse_args()
    config = load_config()
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    starts = {}
    for gpu in options.gpu or CARDS:
        _, known = find_card(gpu)
        card = build_idle_card(known.sheet, known.memory_bytes)
        for pair in options.pairs:
            try:
                plan = plan_memory(find_pair(pair, config), config, card)
            except ConfigError:
                need = find_need(find_pair(pair, config), config, card)
                missing = (need.least_bytes - card.free_bytes >> 20) + 1
                print(f"| {card.name} | {pair} | does not fit: {missing} are missing |")
                continue
            print(f"| {' | '.join(list_row(pair, card, plan))} |")
            starts[f"{pair} on {card.name}"] = list_start_args(pair, plan, config)
    if options.args:
        print(json.dumps(starts, indent=1))


if __name__ == "__main__":
    main()
