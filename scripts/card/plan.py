"""Print how pairs would start on a card: the memory left for KV, and vLLM's start arguments.

    python -m scripts.card.plan                           # eight pairs, cards of 12 to 32 GB
    python -m scripts.card.plan PAIR ... --args rtx4090   # others, and the arguments on a card

It needs neither the card nor the models' files. The figures of the engines are estimates.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flashedge.cli.doctor.fit import find_place
from flashedge.cli.models import SHOP_CARDS
from flashedge.config import Config, load_config
from flashedge.engine.vllm.engine_options import build_options
from flashedge.errors import ConfigError
from flashedge.models.memory.fit import MemoryPlan, find_need, plan_memory, set_sizes
from flashedge.models.registry import find_pair
from flashedge.models.specs import ModelSpec
from scripts.bench.smoke import parse_arguments

PAIRS = (
    "qwen3.5-4b-fp8+skywork-1.5b",
    "qwen-7b-awq+skywork-1.5b",
    "gemma-4-12b-qat+skywork-1.5b",
    "qwen3-8b-fp8+prm-7b-fp8",
    "qwen3.5-9b-fp8+prm-7b-fp8",
    "gpt-oss-20b+skywork-1.5b",
    "qwen3-30b-a3b-gptq+skywork-1.5b",
    "qwen3.5-35b-a3b-gptq+skywork-1.5b",
)


def list_rows(pairs: Sequence[str], config: Config) -> list[str]:
    """A row for each pair: its weights, what both engines take beside, and for each of the usual
    cards the KV that is left and how many paths of full length it holds."""
    names = ["pair", "weights", "engines", *(card.name for card in SHOP_CARDS)]
    rows = [names, ["---"] * len(names)]
    for name in pairs:
        pair, cells = find_pair(name, config), list[str]()
        for card in SHOP_CARDS:
            need = find_need(pair, config, card)
            paths = need.count_paths(card, pair.max_path_tokens)
            room = f"{need.sum_rooms(card) / (1 << 30):.1f} GiB, {paths} x {pair.max_path_tokens:,}"
            cells.append(room if need.fits(card) else "-")
        overhead = sum(engine.overhead for engine in need.engines)
        sizes = [f"{size / (1 << 30):.1f} GiB" for size in (sum(need.weights), overhead)]
        rows.append([f"`{name}`", *sizes, *cells])
    return [f"| {' | '.join(row)} |" for row in rows]


def list_start_args(pair: str, plan: MemoryPlan, config: Config) -> dict[str, dict[str, Any]]:
    """vLLM's start arguments of both engines, by role."""
    found, own = find_pair(pair, config), set_sizes(config, plan.kv_bytes, plan.need.sequences)
    roles: tuple[tuple[str, ModelSpec], ...] = (
        ("generator", found.generator),
        ("verifier", found.verifier),
    )
    return {
        name: replace(
            build_options(
                name, spec, Path(spec.source), kv_bytes, sum(plan.kv_bytes), own, on_card=True
            ),
            bounded=spec.architecture.bounded if spec.architecture else None,
        ).list_args()
        for (name, spec), kv_bytes in zip(roles, plan.kv_bytes, strict=True)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pairs", nargs="*", default=PAIRS, metavar="PAIR")
    parser.add_argument("--args", metavar="CARD", help="print vLLM's start arguments on a card")
    options = parse_arguments(parser)
    config = load_config()
    print("\n".join(list_rows(options.pairs, config)))
    if options.args:
        card = find_place(options.args, config)
        starts: dict[str, Any] = {}
        for name in options.pairs:
            try:
                plan = plan_memory(find_pair(name, config), config, card)
            except ConfigError as error:
                starts[name] = error.line
            else:
                starts[name] = list_start_args(name, plan, config)
        print(json.dumps(starts, indent=1))


if __name__ == "__main__":
    main()
