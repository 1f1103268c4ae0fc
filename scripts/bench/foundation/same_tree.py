"""Does the same problem and seed give the same tree again, and beside 8 other solves?

    python -m scripts.bench.foundation.same_tree

Results that depend on the load can't be reproduced or debugged. Each problem is solved twice alone
and once while 8 other problems are solved. Node ids, token ids, scores and statuses are compared
bit for bit (fp32). The last line is JSON.
"""

from concurrent.futures import ThreadPoolExecutor

import httpx

from scripts.bench.daemon import read_problems, report, start_daemon
from scripts.bench.foundation.solve_rates import list_nodes

OTHERS = 8
CASES = 5


def main() -> None:
    items = read_problems("heldout", CASES + OTHERS)
    with start_daemon(max_running=OTHERS + 1) as served:
        test = httpx.get(f"{served.url}/v1/status").json()["self_test"]
        twice = beside = overlapped = 0
        for i, item in enumerate(items[:CASES]):
            args = ("-n", "16", "--seed", str(i))
            first = served.solve(item["problem"], *args)
            twice += list_nodes(first) == list_nodes(served.solve(item["problem"], *args))
            with ThreadPoolExecutor(OTHERS) as pool:
                others = [
                    pool.submit(served.solve, o["problem"], "-n", "16", "--seed", str(100 + k))
                    for k, o in enumerate(items[CASES:])
                ]
                crowded = served.solve(item["problem"], *args)
                overlapped += sum(not o.done() for o in others)
                for other in others:
                    other.result()
            beside += list_nodes(first) == list_nodes(crowded)
    report(
        cases=CASES,
        same_twice=twice,
        same_beside_8=beside,
        others_still_running_at_its_end=overlapped,
        self_test=test,
    )


if __name__ == "__main__":
    main()
