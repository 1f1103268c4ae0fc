"""Which measure tells best whether two open-ended answers mean the same?

    python -m scripts.bench.clusters --model FOLDER

A vote over open-ended answers needs clusters of equal meaning, and FlashEdge can compare exact
spelling, the likeness of words, or sentence embeddings. `tests/data/open_answers.jsonl` holds
hand-written pairs of answers to one question, many of them near misses; half of the questions tune
a threshold (highest F1), the other half give precision, recall and F1 with 95 % intervals by a
bootstrap over questions. The pairs are harder than samples of one model, so the figures compare
the measures and do not predict a run.

FOLDER is a sentence-transformers folder, here all-MiniLM-L6-v2. Without it the embedding is left
out. The last line is JSON.
"""

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
from flashedge.answers.pairwise import MIN_LIKENESS, measure_likeness
from flashedge.answers.spelling import normalize
from flashedge.answers.workers.embedding_groups import EmbeddingGroups
from scripts.bench.daemon import DATA, report
from scripts.bench.smoke import is_smoke, parse_arguments
from scripts.lab.statistics import auc

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
class Counts:
    """How often a measure is right about pairs."""

    hits: int
    """Pairs with the same meaning that the measure calls the same."""

    false: int
    """Pairs with different meanings that the measure calls the same."""

    misses: int
    """Pairs with the same meaning that the measure calls different."""

    @property
    def precision(self) -> float | None:
        called_same = self.hits + self.false
        return self.hits / called_same if called_same else None

    @property
    def recall(self) -> float | None:
        same = self.hits + self.misses
        return self.hits / same if same else None

    @property
    def f1(self) -> float:
        total = 2 * self.hits + self.false + self.misses
        return 2 * self.hits / total if total else 0.0


Verdict = Callable[[Pair], bool]
Score = Callable[[Pair], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a sentence-transformers folder")
    folder = parse_arguments(parser).model
    lines = (DATA / "open_answers.jsonl").read_text(encoding="utf-8").splitlines()
    pairs = [Pair(**json.loads(line)) for line in lines[:: 8 if is_smoke() else 1]]
    tune, test = ([p for p in pairs if p.split == half] for half in ("tune", "test"))

    scores: dict[str, Score] = {"lexical": lambda p: measure_likeness(p.left, p.right)}
    if folder:
        scores["embedding"] = embed_pairs(folder, pairs)
    verdicts: dict[str, Verdict] = {
        "exact": lambda p: normalize(p.left) == normalize(p.right),
        f"lexical at {MIN_LIKENESS}": compare_with_numbers(scores["lexical"], MIN_LIKENESS),
    }
    thresholds = {}
    for name, score in scores.items():
        for label, rule in (
            (name, compare_with_numbers),
            (f"{name}, numbers not compared", compare_scores),
        ):
            thresholds[label] = best = tune_threshold(score, tune, rule)
            verdicts[f"{label}, tuned"] = rule(score, best)
    table = {name: measure(test, verdict) for name, verdict in verdicts.items()}
    for name, row in table.items():
        print(name, row)
    found: dict[str, object] = {"thresholds": thresholds, "test": table}
    found["auc"] = {
        name: round(auc([s(p) for p in test if p.same], [s(p) for p in test if not p.same]), 3)
        for name, s in scores.items()
    }
    if folder:
        ours, score = verdicts["embedding, tuned"], scores["embedding"]
        found["f1_gain"] = {
            other: compare_f1(test, ours, verdicts[other])
            for other in ("exact", f"lexical at {MIN_LIKENESS}", "lexical, tuned")
        }
        found["embedding_by_threshold"] = {
            at: summarize(count(test, compare_with_numbers(score, at)))
            for at in (0.5, 0.6, 0.7, 0.8, 0.9)
        }
        found["worker"] = asyncio.run(time_worker(folder, thresholds["embedding"]))
    found["by_kind"] = {
        kind: {n: summarize(count([p for p in test if p.kind == kind], v)) for n, v in picked}
        for picked in [[(n, v) for n, v in verdicts.items() if "numbers" not in n]]
        for kind in dict.fromkeys(p.kind for p in test)
    }
    same = sum(p.same for p in test)
    report(pairs=len(pairs), test_pairs=len(test), test_same=same, **found)


def embed_pairs(folder: Path, pairs: Sequence[Pair]) -> Score:
    """Return a score by the cosine of the answers' embeddings."""
    import torch

    from flashedge.answers.workers.embedding import Embedder

    torch.set_num_threads(1)
    embedder = Embedder(folder)
    cosines = {
        (p.left, p.right): embedder.compute_cosines([p.left, p.right])[0, 1].item() for p in pairs
    }
    return lambda p: cosines[p.left, p.right]


def compare_with_numbers(score: Score, threshold: float) -> Verdict:
    """Decide as the product does: answers with conflicting numbers are never the same."""
    return lambda p: score(p) >= threshold and not p.conflict


def compare_scores(score: Score, threshold: float) -> Verdict:
    """Decide by the score alone."""
    return lambda p: score(p) >= threshold


def tune_threshold(
    score: Score, pairs: Sequence[Pair], rule: Callable[[Score, float], Verdict]
) -> float:
    """Find the threshold with the highest F1, the highest one among equals."""
    return max(GRID, key=lambda t: (count(pairs, rule(score, t)).f1, t))


def count(pairs: Sequence[Pair], verdict: Verdict) -> Counts:
    called = [(verdict(p), p.same) for p in pairs]
    return Counts(
        hits=called.count((True, True)),
        false=called.count((True, False)),
        misses=called.count((False, True)),
    )


def summarize(counts: Counts) -> dict[str, object]:
    """Return the rounded figures and the counts behind them."""
    return {
        "precision": None if counts.precision is None else round(counts.precision, 3),
        "recall": None if counts.recall is None else round(counts.recall, 3),
        "f1": round(counts.f1, 3),
        "hits_false_misses": [counts.hits, counts.false, counts.misses],
    }


def measure(pairs: Sequence[Pair], verdict: Verdict) -> dict[str, object]:
    """Return the figures of a measure with their bootstrap intervals."""
    drawn = [count(sample, verdict) for sample in draw_samples(pairs)]
    figures = summarize(count(pairs, verdict))
    for name in ("precision", "recall", "f1"):
        values = [v for v in (getattr(c, name) for c in drawn) if v is not None]
        figures[f"{name}_95"] = find_interval(values)
    return figures


def compare_f1(pairs: Sequence[Pair], ours: Verdict, theirs: Verdict) -> dict[str, object]:
    """Return the difference of F1 on the same questions."""
    drawn = [count(s, ours).f1 - count(s, theirs).f1 for s in draw_samples(pairs)]
    difference = count(pairs, ours).f1 - count(pairs, theirs).f1
    return {"f1": round(difference, 3), "f1_95": find_interval(drawn)}


def draw_samples(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Draw bootstrap samples of whole questions, the same ones in each call."""
    by_question: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_question.setdefault(pair.question, []).append(pair)
    families, rng = list(by_question.values()), random.Random(0)
    return [
        [pair for family in rng.choices(families, k=len(families)) for pair in family]
        for _ in range(DRAWS)
    ]


def find_interval(values: Sequence[float]) -> list[float] | None:
    """Return the ends of the middle 95 % of bootstrap values."""
    if not values:
        return None
    ranked = sorted(values)
    ends = (int(0.025 * len(ranked)), int(0.975 * len(ranked)) - 1)
    return [round(ranked[end], 3) for end in ends]


async def time_worker(folder: Path, threshold: float) -> dict[str, object]:
    """Time what the daemon waits for: the start, n new texts at a time, the same texts again."""
    groups = EmbeddingGroups(folder, threshold)
    found: dict[str, object] = {}
    try:
        since = time.perf_counter()
        await groups.group(["a first text", "and another"])
        found["start_s"] = round(time.perf_counter() - since, 1)
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
                    await groups.group(texts)
                    times.append(time.perf_counter() - since)
            found[f"{n}_texts_ms"] = round(1000 * statistics.median(fresh))
            found[f"{n}_known_texts_ms"] = round(1000 * statistics.median(again))
        assert groups.worker.pid is not None
        found["rss_mb"] = round(psutil.Process(groups.worker.pid).memory_info().rss / 2**20)
    finally:
        await groups.close()
    return found


if __name__ == "__main__":
    main()
