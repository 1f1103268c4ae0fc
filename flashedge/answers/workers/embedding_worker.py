"""The process that groups texts by meaning. Its arguments are a model folder and a threshold.

It reads JSON lines `{"texts": [...]}` and answers `{"groups": [...]}`: for each text the index of
the first text of its group. See `line_worker`.
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


def group_texts(embedder: Embedder, texts: list[str], threshold: float) -> tuple[int, ...]:
    """texts: (n,), all different, sorted -> (n,) index of the first text of each one's group.

    Two texts are similar if the cosine of their vectors is at least `threshold` and their numbers
    do not conflict. Any two texts of a group are similar.
    """
    cosines = embedder.cosines(texts)
    named = [find_numbers(text) for text in texts]
    near = (cosines >= threshold).triu(diagonal=1).nonzero().tolist()
    similar = [
        (cosines[i, j].item(), i, j) for i, j in near if not numbers_conflict(named[i], named[j])
    ]
    return group_by_complete_links(len(texts), similar)


def main() -> None:
    """Answer questions until stdin ends. Anything that a library prints goes to stderr."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    folder, threshold = Path(sys.argv[1]), float(sys.argv[2])
    try:
        from flashedge.answers.workers.embedding import Embedder

        embedder = Embedder(folder)
        embedder.embed(["warm up"])
    except Exception as error:
        replies.write(json.dumps({"failed": f"{type(error).__name__}: {error}"}) + "\n")
        return
    replies.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        replies.write(
            json.dumps({"groups": group_texts(embedder, json.loads(line)["texts"], threshold)})
            + "\n"
        )


if __name__ == "__main__":
    main()
