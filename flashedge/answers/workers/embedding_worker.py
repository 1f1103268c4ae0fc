"""The process that groups texts. Run it as a module with a model's folder and a threshold.

One JSON line in, `{"texts": [...]}`, one out, `{"groups": [...]}`: the index of the first text of
each one's group (`line_worker`).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from flashedge.answers.groups import group_by_complete_links
from flashedge.answers.numbers import find_numbers, numbers_conflict

if TYPE_CHECKING:
    from flashedge.answers.workers.embedding import Embedder


def groups(embedder: Embedder, texts: list[str], threshold: float) -> tuple[int, ...]:
    """texts: (n,), all different, sorted -> (n,) index of the first text of each one's group.

    Two texts are alike when the cosine of their vectors is at least `threshold` and neither names
    a number instead of the other's; groups are complete links of these.
    """
    cosines = embedder.cosines(texts)
    named = [find_numbers(text) for text in texts]
    near = (cosines >= threshold).triu(diagonal=1).nonzero().tolist()
    alike = [
        (cosines[i, j].item(), i, j) for i, j in near if not numbers_conflict(named[i], named[j])
    ]
    return group_by_complete_links(len(texts), alike)


def main() -> None:
    """Answer questions until stdin ends. Anything that a library prints goes to stderr."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    folder, threshold = Path(sys.argv[1]), float(sys.argv[2])
    try:
        from flashedge.answers.workers.embedding import Embedder

        embedder = Embedder(folder)
        embedder.vectors(["warm"])
    except Exception as error:
        replies.write(json.dumps({"failed": f"{type(error).__name__}: {error}"}) + "\n")
        return
    replies.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        replies.write(
            json.dumps({"groups": groups(embedder, json.loads(line)["texts"], threshold)}) + "\n"
        )


if __name__ == "__main__":
    main()
