"""The same problem and seed twice, and once with 8 other solves running: the same tree?

Compares node ids, token ids, scores and statuses, bit for bit (fp32).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx

from scripts.bench.daemon import daemon, problems, report
from scripts.bench.foundation.solve_rates import shape

OTHERS = 8
CASES = 5


def main() -> None:
    items = problems("heldout", CASES + OTHERS)
    with daemon(max_running=OTHERS + 1) as served:
        test = httpx.get(f"{served.url}/v1/status").json()["self_test"]
        twice = beside = overlapped = 0
        for i, item in enumerate(items[:CASES]):
            args = ("-n", "16", "--seed", str(i))
            first = served.solve(item["problem"], *args)
            twice += shape(first) == shape(served.solve(item["problem"], *args))
            with ThreadPoolExecutor(OTHERS) as pool:
                others = [
                    pool.submit(served.solve, o["problem"], "-n", "16", "--seed", str(100 + k))
                    for k, o in enumerate(items[CASES:])
                ]
                crowded = served.solve(item["problem"], *args)
                overlapped += sum(not o.done() for o in others)
                for other in others:
                    other.result()
            beside += shape(first) == shape(crowded)
    report(
        cases=CASES,
        same_twice=twice,
        same_beside_8=beside,
        others_still_running_at_its_end=overlapped,
        self_test=test,
    )


if __name__ == "__main__":
    main()
