"""Compares answers by mathematics: math-verify in one worker process.

math-verify's time limits use SIGALRM, which works in a main thread only, and sympy can hang or use
all memory on an answer like 9^{9^{9}}. So the daemon never imports it. This module, run by `python
-m`, is the worker (see `line_worker`).
"""

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flashedge.answers.equality import decide_equal
from flashedge.answers.spelling import normalize
from flashedge.answers.workers.line_worker import LineWorker, serve
from flashedge.types import NodeId

# All chosen by hand. Ten times more would let one strange answer hold up a run for minutes or fill
# the machine's memory; a tenth would call equal formulas different.
LIMIT_S = 3.0  # of one comparison
GRACE_S = 2.0  # beyond the limit, after which the worker counts as hung
MAX_STRIKES = 3  # late comparisons, after which an answer is not compared any more
MAX_LENGTH = 500  # characters of a formula; longer ones are never given to the worker
MAX_COMPARISONS = 1000  # of one grouping, since n answers can need n² of them
MAX_CACHED = 100_000  # pairs
MEMORY_BYTES = 4 << 30  # of the worker, since sympy can ask for all there is

log = logging.getLogger(__name__)


class MathGrader:
    """Groups equal answers. The groups depend only on the answers and their node ids, unless a
    comparison takes longer than `limit_s` or no worker starts: then the two count as different."""

    def __init__(self, *, limit_s: float = LIMIT_S, command: Sequence[str] | None = None) -> None:
        """limit_s: of one comparison. command starts the worker; None runs this module."""
        self._limit_s = limit_s
        self.worker = LineWorker(
            "grading",
            command or (sys.executable, "-P", "-m", "flashedge.answers.workers.mathematics"),
            fallback="answers are compared by spelling",
        )
        self._lock = asyncio.Lock()
        self._results: dict[tuple[str, str], bool] = {}  # sorted pair of forms -> are equal
        self._strikes: dict[str, int] = {}
        self._late: set[tuple[str, str]] = set()
        self._starting: asyncio.Task[None] | None = None
        self.num_failures = 0
        """See `answers.grouping.TextGroups`."""

    async def cluster(self, answers: Mapping[NodeId, str | None]) -> Mapping[NodeId, str | None]:
        """Map each node to the answer of the lowest node in its cluster, None without an answer.

        In the order of node ids, an answer joins the first cluster whose representative it equals.
        What needs the worker after MAX_COMPARISONS counts as different.
        """
        clusters: list[tuple[str, str]] = []  # (normal form, as written) of representatives
        home: dict[str, str] = {}  # normal form -> representative, as written
        labels: dict[NodeId, str | None] = {}
        left = MAX_COMPARISONS
        for node in sorted(answers):
            answer = answers[node]
            if answer is None:
                labels[node] = None
                continue
            form = normalize(answer)
            if form not in home:
                home[form] = answer
                for other, written in clusters:
                    same = decide_equal(other, form)
                    if same is None and left > 0:
                        left -= 1
                        same = await self._verify(other, form)
                    if same:
                        home[form] = written
                        break
                else:
                    clusters.append((form, answer))
            labels[node] = home[form]
        return labels

    def expect(self, answer: str) -> None:
        """Start the worker, which takes seconds, if this answer will need it."""
        if self._starting is None and decide_equal(answer, "0") is None:
            self._starting = asyncio.create_task(self._start(), name="grading-worker")

    async def _start(self) -> None:
        async with self._lock:
            await self.worker.start()

    async def equal(self, a: str, b: str) -> bool:
        """Whether two answers are equal. Raises nothing but cancellation."""
        decided = decide_equal(a, b)
        return await self._verify(normalize(a), normalize(b)) if decided is None else decided

    async def close(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
        async with self._lock:
            await self.worker.stop()

    async def _verify(self, a: str, b: str) -> bool:
        pair = (a, b) if a <= b else (b, a)
        if max(len(a), len(b)) > MAX_LENGTH:
            return False
        async with self._lock:
            if pair in self._results:
                self.num_failures += pair in self._late
                return self._results[pair]
            is_slow = any(self._strikes.get(form, 0) >= MAX_STRIKES for form in pair)
            if is_slow or not await self.worker.start():
                self.num_failures += 1
                return False
            if len(self._results) >= MAX_CACHED:
                self._results.clear()
                self._late.clear()
            question = {"pair": pair, "limit_s": self._limit_s}
            reply = await self.worker.ask(question, self._limit_s + GRACE_S)
            if reply is None:
                log.warning("the grading worker hung or died while comparing %r and %r", *pair)
            if reply is None or reply.get("late"):
                self.num_failures += 1
                self._late.add(pair)
                for form in pair:
                    self._strikes[form] = self._strikes.get(form, 0) + 1
            same = reply is not None and reply.get("equal") is True
            self._results[pair] = same
            return same


class _Late(BaseException):
    """A comparison's time limit. Not an Exception, so that no library catches it."""


def _prepare() -> Callable[[Any], Mapping[str, Any]]:
    """Load math-verify and return the function that compares a pair.

    SIGALRM ends a late comparison. In C code no handler runs: there the default action of SIGPROF
    ends the process, even if the daemon is gone.
    """
    import resource
    from functools import lru_cache

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    import math_verify
    from math_verify.parser import NormalizationConfig

    from flashedge.answers.workers.exact_values import stands_for_value, use_exact_values

    logging.disable(logging.CRITICAL)
    use_exact_values()
    # `spelling` has dropped the units. The formula is read as a whole, or not at all.
    rules = math_verify.LatexExtractionConfig(
        try_extract_without_anchor=False,
        boxed_match_priority=0,
        normalization_config=NormalizationConfig(malformed_operators=True, boxed="last"),
    )

    @lru_cache(maxsize=4096)
    def parse(form: str) -> Any:
        boxed = f"\\boxed{{{form}}}"
        found = math_verify.parse(boxed, [rules], fallback_mode="no_fallback", parsing_timeout=None)
        return found[0] if found else None

    def equal(a: str, b: str) -> bool:
        left, right = parse(a), parse(b)
        if left is None or right is None:
            return False
        if type(left) is not type(right) and not all(map(stands_for_value, (left, right))):
            return False
        return any(
            math_verify.verify(gold, given, timeout_seconds=None)
            for gold, given in ((left, right), (right, left))
        )

    def raise_late(signum: int, frame: object) -> None:
        raise _Late

    def answer(question: Any) -> Mapping[str, Any]:
        reply = {"equal": False, "late": False}
        try:
            signal.setitimer(signal.ITIMER_REAL, question["limit_s"])
            signal.setitimer(signal.ITIMER_PROF, question["limit_s"] + GRACE_S)
            try:
                reply["equal"] = bool(equal(*question["pair"]))
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.setitimer(signal.ITIMER_PROF, 0)
        except _Late:
            reply["late"] = True
        except Exception:  # sympy may raise anything for a strange answer, which is not equal then
            pass
        return reply

    equal("x^{2}+2x+1", "(x+1)^{2}")  # warm up: the first call builds the parser's tables
    signal.signal(signal.SIGALRM, raise_late)
    return answer


if __name__ == "__main__":
    serve(_prepare)
