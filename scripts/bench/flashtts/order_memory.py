"""How much KV do b paths hold, by the order in which they are taken? (the paper's Fig. 17, left)

    python -m scripts.bench.flashtts.order_memory [--n 512]

For the widest level of a beam search (1.5B + 1.5B, AIME-like, simulated) it computes the distinct
KV of the first b paths in prefix order, in order of arrival, at random and in the worst order, and
how many paths fit into a given memory. Beam search submits children parent by parent, so its own
order is nearly the prefix order already. The paper's baseline is random. The last line is JSON.
"""

import argparse
from random import Random

from flashedge.plots import draw_plot
from flashedge.scheduling.prefix_order import order_by_arrival, order_by_prefix
from flashedge.search.tree import Tree
from flashedge.types import NodeId
from scripts.bench.daemon import report
from scripts.bench.flashtts.orders import random_order, scattered_order
from scripts.bench.flashtts.study import (
    build_cell,
    format_table,
    locate_picture,
    save_json,
    save_tables,
)
from scripts.bench.smoke import parse_arguments
from scripts.lab.benchmark.ladder import RUNGS

NAME = "order_memory"
MEMORY_MB = (50, 100, 200, 400)


def find_widest_level(tree: Tree) -> list[list[NodeId]]:
    """Return the paths of the level with most tokens, as node ids."""
    levels: dict[int, list[NodeId]] = {}
    for node in tree.nodes.values():
        if node.segment is not None:
            levels.setdefault(node.depth, []).append(node.id)
    widest = max(levels.values(), key=lambda ids: sum(tree[i].path_tokens for i in ids))
    return [[at.id for at in tree.path(node)] for node in widest]


def count_tokens(
    tree: Tree, paths: list[list[NodeId]], order: tuple[int, ...], prompt: int
) -> list[int]:
    """(len(paths),): distinct tokens of the first 1, 2, ... paths."""
    seen: set[NodeId] = set()
    tokens, found = prompt, []
    for i in order:
        for node in paths[i]:
            segment = tree[node].segment
            if node not in seen and segment is not None:
                seen.add(node)
                tokens += len(segment.token_ids)
        found.append(tokens)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=512)
    n = parse_arguments(parser).n
    bench = build_cell("1.5B+1.5B", "aime", n, problems=3)
    row = bench.rows[1]
    tree = bench.run(RUNGS[1], row).tree
    paths = find_widest_level(tree)
    orders = {
        "prefix": order_by_prefix(paths),
        "arrival": order_by_arrival(paths),
        "random": random_order(paths, Random(0)),
        "worst": scattered_order(paths),
    }
    prompt = bench.trace.rows[row].prompt_tokens
    token_mb = bench.setup.generator.kv_bytes_per_token / 1e6
    lines = {
        name: [tokens * token_mb for tokens in count_tokens(tree, paths, order, prompt)]
        for name, order in orders.items()
    }
    fit = {
        name: [sum(mb <= memory for mb in line) for memory in MEMORY_MB]
        for name, line in lines.items()
    }
    draw_plot(
        locate_picture(NAME),
        {name: list(enumerate(line, start=1)) for name, line in lines.items()},
        title=f"KV of the first b of {len(paths)} paths, 1.5B+1.5B, AIME-like",
        x="paths",
        y="MB",
    )
    quarters = [len(paths) * k // 4 for k in (1, 2, 3, 4)]
    rows = [
        (name, *(f"{line[q - 1]:.0f}" for q in quarters), *fit[name])
        for name, line in lines.items()
    ]
    head = ("order", *(f"MB of {q}" for q in quarters), *(f"paths in {m} MB" for m in MEMORY_MB))
    made = format_table(head, rows, f"{len(paths)} paths of one level")
    save_tables(NAME, "KV of a level by order", [made])
    save_json(NAME, {"simulated": True, "n": n, "paths": len(paths), "mb": lines, "fit": fit})
    print(made)
    paths_in_mb = dict(zip(map(str, MEMORY_MB), zip(*fit.values(), strict=True), strict=True))
    report(simulated=True, n=n, paths=len(paths), orders=list(fit), paths_in_mb=paths_in_mb)


if __name__ == "__main__":
    main()
