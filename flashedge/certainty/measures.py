"""The checkpoints of a run, and measures of certainty over its answers or its probes."""

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

ENTROPY, REWARD, CONSISTENCY = "entropy", "reward", "consistency"
TV = "tv"  # 1 if `has_settled`, else 0
LEAD = "lead"  # see `measure_lead`
CONSENSUS = "consensus"  # the winner's share of all weights in a vote of two paths or more
PROGRAM = "program"  # the certainty that a user's own program reports
MEASURES = (ENTROPY, REWARD, CONSISTENCY, TV, LEAD, CONSENSUS, PROGRAM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What is measured of a run at one moment. Ref: arXiv 2412.20993 App. D.1."""

    progress: int
    """Finished paths, rollouts (MCTS) or probes (chain of thought) so far."""
    tokens: int
    """Tokens that the run has spent so far."""
    answers: int
    """Number of paths (or probes) that have an answer."""
    measures: Mapping[str, float]
    """Measure name -> value in [0, 1]. A measure without a value here is missing."""
    answer: str | None = None
    """The answer that the run would give if it stopped here."""

    @property
    def certainty(self) -> float | None:
        """The value to display: the first of these that is measured. None if all are missing."""
        usual = (CONSENSUS, CONSISTENCY, ENTROPY, PROGRAM)
        shown = (name for name in usual if name in self.measures)
        return next((self.measures[name] for name in shown), None)


History = tuple[Checkpoint, ...]
Answers = Sequence[str | None]
"""The cluster of each path that has ended, or of each probe. None stands for no answer."""


HESITATIONS = (
    *("wait", "hmm", "hold on", "actually", "not sure", "let me check", "let me re"),
    *("double-check", "double check", "to verify"),
)
"""How expressions of doubt begin: "let me re" stands for "let me recheck" and the like. The second
row is what a real 1.5B wrote that was told to check its answers."""
_HESITATES = re.compile(rf"\b(?:{'|'.join(HESITATIONS)})", re.IGNORECASE)


def measure_certainty(clusters: Iterable[str | None]) -> float | None:
    """(log n - H) / log n in [0, 1], where H is the entropy of the clusters of n paths. clusters:
    (num_paths,) cluster of each finished path. A path without an answer is a cluster of its own.
    The result is 1 when all paths agree, 0 for a single path, and None when no path has an answer.
    Ref: arXiv 2412.20993 §3.1 (normalized semantic entropy)."""
    paths = list(clusters)
    if not any(c is not None for c in paths):
        return None
    n = len(paths)
    if n == 1:
        return 0.0
    groups = Counter(c for c in paths if c is not None)
    counts = [*groups.values(), *([1] * (n - groups.total()))]
    entropy = -math.fsum(c / n * math.log(c / n) for c in counts)
    return max(0.0, (math.log(n) - entropy) / math.log(n))


# ---------------------------------------------------------------- probes


def hesitates(text: str) -> bool:
    """Whether a probe's text, from its answer on, contains a word of doubt, so that the answer does
    not count. Ref: arXiv 2412.20993 §2.1 (post-generation validation). The paper names "wait" and
    "hmm"; the other words are ours."""
    return _HESITATES.search(text) is not None


def measure_consistency(answers: Answers, window: int) -> float | None:
    """C_k = 1/w * sum of [y_j = y_k] over the last w confident answers, in [0, 1]. answers: (k,)
    clusters of the probed answers. None stands for a probe without a confident answer, which is
    left out. The result is None while there are fewer than w others, and where the newest probe is
    left out: C_k compares with its answer. Raises ValueError for a window below 1. Ref: arXiv
    2412.20993 §2.1 ("omit this response from the consistency test")."""
    if window < 1:
        raise ValueError(f"window {window} is below 1")
    confident = _list_confident(answers)
    if len(confident) < window or answers[-1] is None:
        return None
    return confident[-window:].count(answers[-1]) / window


def is_unsettled(answers: Answers, *, after: int, below: float) -> bool:
    """Whether less than the share `below` of the last `after` confident answers agree, or so many
    probes in a row have none. Ref: arXiv 2412.20993 §2.1 ("fail to converge after significant
    effort"); the formula is ours."""
    confident = _list_confident(answers)[-after:]
    is_split = len(confident) == after and max(Counter(confident).values()) < below * after
    return is_split or [*answers[-after:]] == [None] * after


def pick_settled_answer(answers: Answers, window: int) -> str | None:
    """The most frequent of the last `window` confident answers. In a tie, the newest. None if no
    probe has one."""
    confident = _list_confident(answers)[-window:]
    return max(reversed(confident), key=Counter(confident).__getitem__, default=None)


def _list_confident(answers: Answers) -> list[str]:
    return [answer for answer in answers if answer is not None]


# ---------------------------------------------------------------- the lead of a vote

# How likely the most frequent answer is to win the vote, and how many paths to draw at once. Both
# do without calibration, since they use the counts alone. Let `first` paths have given the most
# frequent answer and `second` the next one. If all shares between the two were equally likely
# before, the next path gives the first with the chance (first + 1) / (first + second + 2), which is
# Laplace's rule. Other answers are left out, so the chance is a little too high where a third one
# is as frequent as the second.
#
# Ref: arXiv 2305.11860 §3 (adaptive consistency), which asks whether the first answer is the
# likelier one. The lead asks whether it wins the vote of all paths, since the run would answer that
# without a stop. Drawing several paths at once is ours.


def measure_lead(answers: Answers, cap: int) -> float | None:
    """The chance in [0, 1] that the most frequent answer so far wins the vote of all `cap` paths.
    None when no path has an answer."""
    first, second = _count_two(answers)
    return find_chance(first, second, max(0, cap - len(answers))) if first else None


def count_wanted(answers: Answers, cap: int, least: float) -> int:
    """How many paths should be open at once after these, at most those left of `cap`. It is the
    number of further paths that would raise the chance to `least` if each gave the most frequent
    answer, divided by the share that does so by Laplace's rule. 0 where the chance is high
    enough."""
    return count_further(*_count_two(answers), max(0, cap - len(answers)), least)


@lru_cache(maxsize=1 << 10)
def find_most_wanted(cap: int, least: float) -> int:
    """About the most paths that a vote of `cap` has open at once, which it has when two answers
    have equal counts. Looks at no more than 33 of these counts."""
    counts = range(0, cap // 2 + 1, 1 + cap // 64)
    return max(count_further(each, each, cap - 2 * each, least) for each in counts)


def count_further(first: float, second: float, left: int, least: float) -> int:
    """As `count_wanted`, from the counts, or the weights, of two answers."""

    def is_sure(more: int) -> bool:
        known = first + more > 0
        return known and find_chance(first + more, second, left - more) >= least

    needed = bisect_left(range(left), True, key=is_sure)
    return min(left, math.ceil(needed * (first + second + 2) / (first + 1)))


def find_chance(first: float, second: float, left: int) -> float:
    """The chance that after `left` more paths the second answer has no more votes than the first.
    The number of them that give the second answer has a Beta-binomial distribution."""
    if second + left <= first:
        return 1.0
    whole = _log_choose(first + second + left + 1, left)
    logs = (
        _log_choose(second + x, x) + _log_choose(first + left - x, first) - whole
        for x in range(min(left, int((first + left - second) // 2)) + 1)
    )
    return min(1.0, math.fsum(map(math.exp, logs)))


def _log_choose(n: float, k: float) -> float:
    """The logarithm of the binomial coefficient "n choose k"."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _count_two(answers: Answers) -> tuple[int, int]:
    """(first, second) counts of the two answers that have most."""
    counts = Counter(answer for answer in answers if answer is not None)
    first, second = (*(count for _, count in counts.most_common(2)), 0, 0)[:2]
    return first, second


# ---------------------------------------------------------------- the rule with a proof

# The rule holds once the distribution of the answers of k probes stops moving. At useful accuracies
# it needs hundreds to thousands of probes (`count_needed_probes`), so it never stops a chain of
# ordinary length. It is an option, and other rules are compared with it.


def bound_failure(k: int, *, epsilon: float, num_groups: int) -> float:
    """An upper bound of the chance that one of the 2k estimates is off by more than epsilon/3. It
    is 2k * 2^(M+1) * exp(-k' e'^2 / 2), where M is `num_groups`, e' = epsilon/3, and k' = k - 1 is
    the smaller of the two window lengths. Ref: arXiv 2412.20993 App. E, Lemma 1."""
    exponent = (num_groups + 1) * math.log(2) - (k - 1) * (epsilon / 3) ** 2 / 2
    return math.exp(min(700.0, math.log(2 * k) + exponent))


def count_needed_probes(*, epsilon: float, delta: float, num_groups: int) -> int:
    """The least k from which on `bound_failure` is at most delta. The paper gives k up to
    logarithms; this solves its last inequality exactly. num_groups: M, the number of distinct
    answers. Raises ValueError unless epsilon and delta are in (0, 1) and M >= 1."""
    if not (0 < epsilon < 1 and 0 < delta < 1 and num_groups >= 1):
        raise ValueError(f"epsilon {epsilon}, delta {delta}, num_groups {num_groups}")
    # The bound rises up to k = 2/e'^2 and falls after it. Search the falling side.
    low = max(2, math.ceil(2 / (epsilon / 3) ** 2))
    high = low

    def meets(k: int) -> bool:
        return bound_failure(k, epsilon=epsilon, num_groups=num_groups) <= delta

    while not meets(high):
        high *= 2
    return bisect_left(range(high), True, low, key=meets)


def measure_total_variation(p: Answers, q: Answers) -> float:
    """Half the L1 distance of the distributions of two non-empty samples, in [0, 1]."""
    left, right = Counter(p), Counter(q)
    return 0.5 * math.fsum(abs(left[a] / len(p) - right[a] / len(q)) for a in left | right)


def has_settled(answers: Answers, k: int, *, epsilon: float) -> bool:
    """Whether the distribution of the answers stayed the same over the last 2k probes. Each window
    of k of them, moved by up to k probes, must differ from the first window by at most epsilon/3,
    and so must each window of k - 1 (moved by up to k - 1). answers: (num_probes,); as in
    `measure_consistency`, probes in doubt are left out, and none of them is settled. Ref: arXiv
    2412.20993 App. E, Definition 2 and the test below it."""
    last = _list_confident(answers)[-2 * k :]
    if k < 2 or len(last) < 2 * k or answers[-1] is None:
        return False
    return all(
        measure_total_variation(last[:size], last[j : j + size]) <= epsilon / 3
        for size in (k, k - 1)
        for j in range(1, size + 1)
    )
