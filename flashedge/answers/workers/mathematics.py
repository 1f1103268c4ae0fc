"""Equality of answers by mathematics: math-verify in one worker process.

math-verify's time limits use SIGALRM, which works in a main thread only, and sympy can hang or
eat all memory on an answer like 9^{9^{9}}. So the daemon never imports it: this module run as
`python -m` is the worker, one JSON line in, one out. `MathGrader` starts it at the
first pair that spelling can't decide, kills it when it hangs, and starts another.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from flashedge.answers.equality import decide_equal
from flashedge.answers.spelling import normalize
from flashedge.answers.workers.line_worker import LineWorker
from flashedge.types import NodeId

LIMIT_S = 3.0
GRACE_S = 2.0
MAX_STRIKES = 3
MAX_LENGTH = 500
MAX_COMPARISONS = 1000
MAX_CACHED = 100_000
MEMORY_BYTES = 4 << 30

log = logging.getLogger(__name__)


class MathGrader:
    """Groups equal answers. Its answer is a function of the answers and their node ids, never of
    the order of arrival; a comparison that takes longer than `limit_s` counts as different."""

    def __init__(self, *, limit_s: float = LIMIT_S, command: Sequence[str] | None = None) -> None:
        self._limit_s = limit_s
        self._worker = LineWorker(
            "grading",
            command or (sys.executable, "-P", "-m", "flashedge.answers.workers.mathematics"),
            without="answers are compared by spelling",
        )
        self._lock = asyncio.Lock()
        self._known: dict[tuple[str, str], bool] = {}
        self._strikes: dict[str, int] = {}

    @property
    def pid(self) -> int | None:
        """Of the worker, if one runs."""
        return self._worker.pid

    async def cluster(self, answers: Mapping[NodeId, str | None]) -> Mapping[NodeId, str | None]:
        """Map each node to its cluster's representative: the answer of its lowest node.

        Answers join, in the order of node ids, the first cluster whose representative they equal.
        Past MAX_COMPARISONS questions to the worker, spelling alone decides.
        """
        clusters: list[tuple[str, str]] = []  # (normal form, as written) of representatives
        home: dict[str, str] = {}
        found: dict[NodeId, str | None] = {}
        left = MAX_COMPARISONS
        for node in sorted(answers):
            answer = answers[node]
            if answer is None:
                found[node] = None
                continue
            form = normalize(answer)
            if form not in home:
                home[form] = answer
                for other, written in clusters:
                    same = decide_equal(other, form)
                    if same is None and left > 0:
                        left -= 1
                        same = await self._verified(other, form)
                    if same:
                        home[form] = written
                        break
                else:
                    clusters.append((form, answer))
            found[node] = home[form]
        return found

    async def equal(self, a: str, b: str) -> bool:
        """Whether two answers say the same. Raises nothing but cancellation."""
        decided = decide_equal(a, b)
        return await self._verified(normalize(a), normalize(b)) if decided is None else decided

    async def close(self) -> None:
        """End the worker. The next question would start another."""
        async with self._lock:
            await self._worker.stop()

    # ------------------------------------------------------------ worker

    async def _verified(self, a: str, b: str) -> bool:
        """Ask the worker about two normal forms, or remember what it said."""
        pair = (a, b) if a <= b else (b, a)
        if max(len(a), len(b)) > MAX_LENGTH:
            return False
        async with self._lock:
            if pair in self._known:
                return self._known[pair]
            if any(self._strikes.get(form, 0) >= MAX_STRIKES for form in pair):
                return False
            if not await self._worker.start():
                return False
            question = {"pair": pair, "limit_s": self._limit_s}
            reply = await self._worker.ask(question, self._limit_s + GRACE_S)
            if reply is None:
                log.warning("the grading worker hung or died over %r and %r", *pair)
            if reply is None or reply.get("late"):
                for form in pair:
                    self._strikes[form] = self._strikes.get(form, 0) + 1
            if len(self._known) >= MAX_CACHED:
                self._known.clear()
            same = reply is not None and reply.get("equal") is True
            self._known[pair] = same
            return same


# ---------------------------------------------------------------- in the worker


class _Late(BaseException):
    """The time limit of one comparison; not an Exception, so that nothing below swallows it."""


def _work() -> None:
    """Answer questions until stdin ends. Anything that a library prints goes to stderr.

    SIGALRM ends a comparison that is late; one stuck in C code, where no handler runs, meets the
    default action of SIGPROF, which ends the process even if nobody is left to kill it.
    """
    import resource
    from functools import lru_cache

    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        import math_verify
    except Exception as error:
        replies.write(json.dumps({"failed": f"{type(error).__name__}: {error}"}) + "\n")
        return
    logging.disable(logging.CRITICAL)

    @lru_cache(maxsize=4096)
    def parsed(form: str) -> Any:
        return math_verify.parse(f"\\boxed{{{form}}}", parsing_timeout=None)

    def equal(a: str, b: str) -> bool:
        left, right = parsed(a), parsed(b)
        if not left or not right:
            return False
        return any(
            math_verify.verify(gold, given, timeout_seconds=None)
            for gold, given in ((left, right), (right, left))
        )

    def late(signum: int, frame: object) -> None:
        raise _Late

    equal("x^{2}+2x+1", "(x+1)^{2}")  # the parser's tables are made at first use
    signal.signal(signal.SIGALRM, late)
    replies.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        question = json.loads(line)
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
        except Exception:  # whatever sympy raises over a strange answer: not shown to be equal
            pass
        replies.write(json.dumps(reply) + "\n")


if __name__ == "__main__":
    _work()
