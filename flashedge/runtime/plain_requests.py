"""Watches the requests outside any run, for the metrics and the scheduler of programs."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flashedge.engine.http_requests import Follow, PlainRequest
from flashedge.runtime.metrics import Metrics
from flashedge.runtime.programs.scheduler import PairScheduler
from flashedge.scheduling.lengths.outputs import OutputLengths


@contextmanager
def watch_request(
    metrics: Metrics, find_scheduler: Callable[[str], PairScheduler], ask: PlainRequest
) -> Iterator[Follow]:
    """Make a request a member of its program while it is open, and count it in the metrics however
    it ends. find_scheduler: returns the scheduler of the pair with this name."""
    scheduler, began = find_scheduler(ask.pair), time.monotonic()
    member = scheduler.add_request(ask)
    most_prompt_tokens = completion_tokens = 0
    first_token_s: float | None = None
    ends: list[str] = []
    end = "cancelled"

    def follow(prompt_tokens: int, new_tokens: int, finishes: tuple[str, ...]) -> None:
        nonlocal most_prompt_tokens, completion_tokens, first_token_s
        most_prompt_tokens = max(most_prompt_tokens, prompt_tokens)
        completion_tokens += new_tokens
        ends.extend(finishes)
        if new_tokens or finishes:
            scheduler.mark_started(ask.program)
        if new_tokens:
            if first_token_s is None:
                first_token_s = time.monotonic() - began
            scheduler.note_tokens(member, new_tokens)

    try:
        yield follow
    except Exception:
        end = "error"
        raise
    finally:
        lengths = None  # stays unknown for several choices, of which only the sum is known
        if ask.choices == 1 and completion_tokens:
            lengths = OutputLengths.from_outputs([completion_tokens], [ends != ["stop"]])
        scheduler.leave(member, lengths)
        if len(ends) >= ask.choices:
            end = "length" if "length" in ends else "stop"
        if not ask.is_score:
            metrics.observe_chat(
                prompt_tokens=most_prompt_tokens,
                completion_tokens=completion_tokens,
                first_token_s=first_token_s,
                total_s=time.monotonic() - began,
                finish=end,
                choices=ask.choices,
            )
