"""Which open-ended answers count as one: exact spelling, likeness of words, an embedding model.

    python -m scripts.bench.clusters --model FOLDER

`tests/data/open_answers.jsonl` holds pairs of answers to one question, written by hand: same or
different meaning, many of the different ones near misses. Half of the questions tunes a threshold
(highest F1), the other half is reported, with 95 % intervals by a bootstrap over questions. The
pairs are harder than what samples of one model differ by: the figures compare the measures, they
do not foretell a run. FOLDER is a sentence-transformers folder, here all-MiniLM-L6-v2; without it
the embedding is left out. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from flashedge.answers.numbers import find_numbers, numbers_conflict
from flashedge.answers.spelling import normalize
from flashedge.answers.words import MIN_LIKENESS, likeness
from flashedge.answers.workers.embedding_groups import EmbeddingGroups
from scripts.bench.daemon import DATA, report
from scripts.train_pair.metrics import auc

DRAWS = 2000
GRID = [i / 100 for i in range(101)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    question: str
    left: str
    right: str
    same: bool
    kind: str
    split: str

    @property
    def conflict(self) -> bool:
        return numbers_conflict(find_numbers(self.left), find_numbers(self.right))


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Of pairs called the same, how many are (hits) and are not (false); of the others, misses."""

    hits: int
    false: int
    misses: int

    @property
    def precision(self) -> float | None:
        called = self.hits + self.false
        return self.hits / called if called else None

    @property
    def recall(self) -> float | None:
        there = self.hits + self.misses
        return self.hits / there if there else None

    @property
    def f1(self) -> float:
        over = 2 * self.hits + self.false + self.misses
        return 2 * self.hits / over if over else 0.0


Verdict = Callable[[Pair], bool]
Score = Callable[[Pair], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a sentence-transformers folder")
    folder = parser.parse_args().model
    lines = (DATA / "open_answers.jsonl").read_text(encoding="utf-8").splitlines()
    pairs = [Pair(**json.loads(line)) for line in lines]
    tune, test = ([p for p in pairs if p.split == half] for half in ("tune", "test"))

    scores: dict[str, Score] = {"lexical": lambda p: likeness(p.left, p.right)}
    if folder:
        scores["embedding"] = cosine_of(folder, pairs)
    verdicts: dict[str, Verdict] = {
        "exact": lambda p: normalize(p.left) == normalize(p.right),
        f"lexical at {MIN_LIKENESS}": veto(scores["lexical"], MIN_LIKENESS),
    }
    thresholds = {}
    for name, score in scores.items():
        for label, rule in ((name, veto), (f"{name}, numbers not compared", plain)):
            thresholds[label] = best = tuned(score, tune, rule)
            verdicts[f"{label}, tuned"] = rule(score, best)
    table = {name: figures(test, verdict) for name, verdict in verdicts.items()}
    for name, row in table.items():
        print(name, row)
    told: dict[str, object] = {"thresholds": thresholds, "test": table}
    told["auc"] = {
        name: round(auc([s(p) for p in test if p.same], [s(p) for p in test if not p.same]), 3)
        for name, s in scores.items()
    }
    if folder:
        ours, score = verdicts["embedding, tuned"], scores["embedding"]
        told["f1_gain"] = {
            other: gain(test, ours, verdicts[other])
            for other in ("exact", f"lexical at {MIN_LIKENESS}", "lexical, tuned")
        }
        told["embedding_by_threshold"] = {
            at: told_of(counted(test, veto(score, at))) for at in (0.5, 0.6, 0.7, 0.8, 0.9)
        }
        told["worker"] = asyncio.run(costs(folder, thresholds["embedding"]))
    told["by_kind"] = {
        kind: {n: told_of(counted([p for p in test if p.kind == kind], v)) for n, v in picked}
        for picked in [[(n, v) for n, v in verdicts.items() if "numbers" not in n]]
        for kind in dict.fromkeys(p.kind for p in test)
    }
    same = sum(p.same for p in test)
    report(pairs=len(pairs), test_pairs=len(test), test_same=same, **told)


def cosine_of(folder: Path, pairs: Sequence[Pair]) -> Score:
    import torch

    from flashedge.answers.workers.embedding import Embedder

    torch.set_num_threads(1)
    embedder = Embedder(folder)
    found = {(p.left, p.right): embedder.cosines([p.left, p.right])[0, 1].item() for p in pairs}
    return lambda p: found[p.left, p.right]


def veto(score: Score, threshold: float) -> Verdict:
    """As the product decides: no number of one against another of the other."""
    return lambda p: score(p) >= threshold and not p.conflict


def plain(score: Score, threshold: float) -> Verdict:
    return lambda p: score(p) >= threshold


def tuned(score: Score, pairs: Sequence[Pair], rule: Callable[[Score, float], Verdict]) -> float:
    """The threshold with the highest F1, of equal ones the highest."""
    return max(GRID, key=lambda t: (counted(pairs, rule(score, t)).f1, t))


def counted(pairs: Sequence[Pair], verdict: Verdict) -> Counted:
    called = [(verdict(p), p.same) for p in pairs]
    return Counted(
        hits=called.count((True, True)),
        false=called.count((True, False)),
        misses=called.count((False, True)),
    )


def told_of(count: Counted) -> dict[str, object]:
    """Rounded figures, and what they are made of."""
    return {
        "precision": None if count.precision is None else round(count.precision, 3),
        "recall": None if count.recall is None else round(count.recall, 3),
        "f1": round(count.f1, 3),
        "hits_false_misses": [count.hits, count.false, count.misses],
    }


def figures(pairs: Sequence[Pair], verdict: Verdict) -> dict[str, object]:
    drawn = [counted(sample, verdict) for sample in samples(pairs)]
    told = told_of(counted(pairs, verdict))
    for name in ("precision", "recall", "f1"):
        values = [v for v in (getattr(c, name) for c in drawn) if v is not None]
        told[f"{name}_95"] = middle(values)
    return told


def gain(pairs: Sequence[Pair], ours: Verdict, theirs: Verdict) -> dict[str, object]:
    """Difference of F1 on the same questions."""
    drawn = [counted(s, ours).f1 - counted(s, theirs).f1 for s in samples(pairs)]
    whole = counted(pairs, ours).f1 - counted(pairs, theirs).f1
    return {"f1": round(whole, 3), "f1_95": middle(drawn)}


def samples(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Bootstrap draws of whole questions, the same ones at each call."""
    by_question: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_question.setdefault(pair.question, []).append(pair)
    families, rng = list(by_question.values()), random.Random(0)
    return [
        [pair for family in rng.choices(families, k=len(families)) for pair in family]
        for _ in range(DRAWS)
    ]


def middle(values: Sequence[float]) -> list[float] | None:
    """The middle 95 % of bootstrap values."""
    if not values:
        return None
    ranked = sorted(values)
    ends = (int(0.025 * len(ranked)), int(0.975 * len(ranked)) - 1)
    return [round(ranked[end], 3) for end in ends]


async def costs(folder: Path, threshold: float) -> dict[str, object]:
    """What the daemon waits for: the start, then n new texts at a time, then the same again."""
    made = EmbeddingGroups(folder, threshold)
    told: dict[str, object] = {}
    try:
        since = time.perf_counter()
        await made.group(["a first text", "and another"])
        told["start_s"] = round(time.perf_counter() - since, 1)
        for n in (16, 64, 256):
            fresh: list[float] = []
            again: list[float] = []
            for turn in range(3):
                texts = [
                    f"Turn {turn}: sort the {n} numbers, then answer is item {i} of the list."
                    for i in range(n)
                ]
                for times in (fresh, again):
                    since = time.perf_counter()
                    await made.group(texts)
                    times.append(time.perf_counter() - since)
            told[f"{n}_texts_ms"] = round(1000 * statistics.median(fresh))
            told[f"{n}_known_texts_ms"] = round(1000 * statistics.median(again))
        assert made.pid is not None
        told["rss_mb"] = round(psutil.Process(made.pid).memory_info().rss / 2**20)
    finally:
        await made.close()
    return told


if __name__ == "__main__":
    main()
