"""Right answers among 20 held-out problems, n = 1, 4, 16, ours and --baseline, same seeds.

Both sides draw the same tokens (the noise belongs to seed and position), so rates should agree;
what differs is the time. Also says how many trees agree token for token.
"""

from __future__ import annotations

import statistics

from scripts.bench.daemon import daemon, problems, report

COUNT = 20
NS = (1, 4, 16)


def main() -> None:
    asked = [*problems("heldout_easy", COUNT // 2), *problems("heldout", COUNT - COUNT // 2)]
    table: dict[str, dict[str, object]] = {}
    same_trees = 0
    with daemon() as served:
        served.solve(asked[0]["problem"], "-n", "4")  # warm-up
        for n in NS:
            ours, stock = [], []
            for i, item in enumerate(asked):
                args = ("-n", str(n), "--seed", str(i))
                sides = [args, (*args, "--baseline")]
                order = sides if i % 2 else sides[::-1]
                found = {a[-1] == "--baseline": served.solve(item["problem"], *a) for a in order}
                ours.append((found[False], item["answer"]))
                stock.append((found[True], item["answer"]))
                same_trees += shape(found[False]) == shape(found[True])
            table[f"n={n}"] = {"ours": summary(ours), "baseline": summary(stock)}
            print(f"n={n}", table[f"n={n}"])
    report(problems=len(asked), same_trees=f"{same_trees}/{len(NS) * len(asked)}", **table)


def summary(runs: list[tuple[dict, str]]) -> dict[str, object]:
    return {
        "right": sum(r["answer"] == a for r, a in runs),
        "median_s": round(statistics.median(r["timing"]["total_s"] for r, _ in runs), 3),
        "median_verify_s": round(statistics.median(r["timing"]["verify_s"] for r, _ in runs), 3),
        "mean_tree_tokens": round(statistics.mean(r["usage"]["tree_tokens"] for r, _ in runs)),
    }


def shape(run: dict) -> list[tuple]:
    return [(n["id"], n["token_ids"], n["score"], n["status"]) for n in run["tree"]["nodes"]]


if __name__ == "__main__":
    main()
