"""How many of 20 held-out problems are right with n = 1, 4, 16, and how long do they take?

    python -m scripts.bench.foundation.solve_rates

Each problem is solved with and without `baseline=true`, with the same seed. Both draw the same
tokens, because the noise depends on seed and position alone, so the answers should agree and only
the time should differ. The script also counts the trees that agree token for token. The last line
is JSON.
"""

import statistics
from typing import Any

from scripts.bench.daemon import read_problems, report, start_daemon

COUNT = 20
NS = (1, 4, 16)


def main() -> None:
    chosen = [
        *read_problems("heldout_easy", COUNT // 2),
        *read_problems("heldout", COUNT - COUNT // 2),
    ]
    table: dict[str, dict[str, object]] = {}
    same_trees = 0
    for n in NS:  # a daemon each: tokens are drafted from a client's earlier texts
        with start_daemon() as served:
            served.solve("What is 2 + 3?", "-n", "4")  # warm-up
            ours, stock = [], []
            for i, item in enumerate(chosen):
                args = ("-n", str(n), "--seed", str(i))
                sides = [args, (*args, "--set", "baseline=true")]
                order = sides if i % 2 else sides[::-1]
                found = {a[-1] == "baseline=true": served.solve(item["problem"], *a) for a in order}
                ours.append((found[False], item["answer"]))
                stock.append((found[True], item["answer"]))
                same_trees += list_nodes(found[False]) == list_nodes(found[True])
            table[f"n={n}"] = {"ours": summarize(ours), "baseline": summarize(stock)}
            print(f"n={n}", table[f"n={n}"])
    report(problems=len(chosen), same_trees=f"{same_trees}/{len(NS) * len(chosen)}", **table)


def summarize(runs: list[tuple[dict[str, Any], str]]) -> dict[str, object]:
    return {
        "right": sum(r["answer"] == a for r, a in runs),
        "median_s": round(statistics.median(r["timing"]["total_s"] for r, _ in runs), 3),
        "median_verify_s": round(statistics.median(r["timing"]["verify_s"] for r, _ in runs), 3),
        "mean_tree_tokens": round(statistics.mean(r["usage"]["tree_tokens"] for r, _ in runs)),
    }


def list_nodes(run: dict[str, Any]) -> list[tuple[object, ...]]:
    """List what has to be equal in two trees: id, tokens, score and status of each node."""
    return [(n["id"], n["token_ids"], n["score"], n["status"]) for n in run["tree"]["nodes"]]


if __name__ == "__main__":
    main()
