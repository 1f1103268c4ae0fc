"""Packs an engine's outputs for the daemon: log-probabilities as plain numbers, tokens joined.

Decoding vLLM's three arrays for each token took the daemon more time than everything else that it
does for a token. A search needs only the log-probability. The engine puts it into
`kv_transfer_params`, a dictionary that vLLM passes on as it is.

Tokens go to the daemon some 20 times a second. On a card, a message for each token of 64 paths kept
the daemon so busy that it learned of a level's end tens of milliseconds late. The end of a step is
sent at once. `Optimizations.joined_tokens` switches this off. Checked with vLLM 0.32.0.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vllm.outputs import RequestOutput
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.request import Request

from flashedge.certainty.token_confidence import measure_confidence
from flashedge.engine.vllm.inside.keys import (
    CONFIDENCES,
    EACH_TOKEN,
    ENTROPIES,
    LOGPROBS,
    read_args,
)
from flashedge.search.step_rules import TOP, estimate_entropy

_add = RequestOutput.add
PERIOD_S = 0.05
"""Seconds between two messages with the kept tokens. Chosen by hand: at a tenth a card's daemon is
as busy as with single tokens, and at ten times a stream of text visibly stutters."""
LISTS = (LOGPROBS, ENTROPIES, CONFIDENCES)
"""The keys in `kv_transfer_params` that hold a list with a number for each token."""


def pack_logprobs(output: EngineCoreOutput, measured: str | None = None) -> None:
    """Move the log-probabilities of an output from vLLM's arrays to `LISTS`. measured: ENTROPIES or
    CONFIDENCES, which are computed of the likeliest tokens."""
    rows = output.new_logprobs.logprobs
    found: dict[str, list[float]] = {LOGPROBS: rows[:, 0].tolist()}
    if measured == ENTROPIES:
        found[ENTROPIES] = [find_entropy(row) for row in rows]
    elif measured == CONFIDENCES:
        found[CONFIDENCES] = [measure_confidence(row[1 : TOP + 1].tolist()) for row in rows]
    output.kv_transfer_params = {**(output.kv_transfer_params or {}), **found}
    output.new_logprobs = None


def find_entropy(row: Any) -> float:
    """Estimate the entropy at a token, in nats. row: (at least TOP + 1,) float32, the
    log-probability of the drawn token, then those of the likeliest."""
    return estimate_entropy(row[1 : TOP + 1].tolist())


def join_outputs(self: RequestOutput, next_output: RequestOutput, aggregate: bool) -> None:
    """Stand in for vLLM's `RequestOutput.add`, which joins the tokens of outputs that nobody has
    read yet, but keeps the `kv_transfer_params` of the later one alone."""
    earlier = self.kv_transfer_params or {}
    _add(self, next_output, aggregate)
    if aggregate:
        self.kv_transfer_params = _join(earlier, self.kv_transfer_params or {}) or None


def _join(earlier: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    """Return the later `kv_transfer_params`, with the `LISTS` of both joined."""
    joined = {key: [*earlier[key], *later.get(key, ())] for key in LISTS if earlier.get(key)}
    return {**later, **joined}


class JoinedTokens:
    """Packs the log-probabilities of outputs, and joins the outputs of each request. Requests have
    the names by which the front end knows them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sent_s = clock()
        self._kept: dict[str, tuple[int, EngineCoreOutput]] = {}
        """By request, its client and the output that is kept back."""
        self._asked: dict[str, tuple[Any, dict[str, Any]]] = {}
        """By request of the step that ends, its parameters and our part of them."""

    def begin_update(
        self,
        scheduled: SchedulerOutput,
        requests: Mapping[str, Request],
        find_name: Callable[[str], str | None],
    ) -> None:
        """find_name: the front end's name of one of vLLM's requests, None for a draft."""
        self._asked.clear()
        for own in scheduled.num_scheduled_tokens:
            request, name = requests.get(own), find_name(own)
            if request is not None and name is not None:
                params = request.sampling_params
                self._asked[name] = params, read_args(params)

    def end_update(self, outputs: dict[int, EngineCoreOutputs]) -> None:
        for client, of_client in list(outputs.items()):
            found = (self._keep(client, output) for output in of_client.outputs)
            of_client.outputs = [output for output in found if output is not None]
            if not (of_client.outputs or of_client.finished_requests or of_client.scheduler_stats):
                del outputs[client]
        if self._kept and self._clock() - self._sent_s >= PERIOD_S:
            self._sent_s = self._clock()
            for client, output in self._kept.values():
                outputs.setdefault(client, EngineCoreOutputs()).outputs.append(output)
            self._kept.clear()

    def forget(self, names: str | Iterable[str] | None) -> None:
        """Drop the kept outputs of these requests. None stands for all of them."""
        gone = {names} if isinstance(names, str) else set(self._kept if names is None else names)
        for name in gone:
            self._kept.pop(name, None)

    def _keep(self, client: int, output: EngineCoreOutput) -> EngineCoreOutput | None:
        """Return what to send of a request now, or None."""
        name = output.request_id
        params, args = self._asked.get(name, (None, {}))
        if name in self._asked and not args.get(LOGPROBS):
            return output
        if output.new_logprobs is not None:
            # TOP log-probabilities ask for entropies, since `stock` sends no entropy rule.
            other = ENTROPIES if params is not None and params.logprobs == TOP else None
            pack_logprobs(output, CONFIDENCES if args.get(CONFIDENCES) else other)
        if name not in self._asked or args.get(EACH_TOKEN):
            return output
        kept = self._kept.get(name)
        if not output.finished:
            if kept is None:
                output.new_token_ids = list(output.new_token_ids)  # it may be the runner's list
                self._kept[name] = (client, output)
            else:
                extend(kept[1], output)
            return None
        if kept is not None:
            del self._kept[name]
            earlier = kept[1]
            extend(earlier, output)
            output.new_token_ids = earlier.new_token_ids
            output.kv_transfer_params = earlier.kv_transfer_params
            output.prefill_stats = output.prefill_stats or earlier.prefill_stats
        return output


def extend(earlier: EngineCoreOutput, later: EngineCoreOutput) -> None:
    """Add the tokens of a later output, and their `LISTS`, to an earlier one."""
    extras, more = earlier.kv_transfer_params or {}, later.kv_transfer_params or {}
    earlier.new_token_ids += later.new_token_ids
    earlier.kv_transfer_params = {**extras, **_join(extras, more)}
