"""Sends the tokens of a step to the daemon some 20 times a second, and not one by one.

A message for each token of each path costs both processes: the engine builds and sends it between
two steps, and the daemon wakes a task for it. On a card, where a step takes 3 ms, 64 paths kept the
daemon busy, and it learned tens of milliseconds late that a level was over. What a search needs at
once is a step's end, which is never kept back; a client sees its progress ten times a second.

Ours. The switch is `Optimizations.joined_tokens`. Checked with vLLM 0.32.0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.request import Request

from flashedge.engine.vllm.inside.draft_requests import read_noise_args, wants_entropies
from flashedge.engine.vllm.inside.keys import EACH_TOKEN, ENTROPIES, LOGPROBS
from flashedge.engine.vllm.inside.packed_logprobs import pack_logprobs

PERIOD_S = 0.05
LISTS = (LOGPROBS, ENTROPIES)
"""Of what an output carries for the daemon: one number for each token."""


class JoinedTokens:
    """Packs the log-probabilities of outputs (`packed_logprobs`), and joins those of a path.

    Requests have the names by which the front end knows them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sent_s = clock()
        self._kept: dict[str, tuple[int, EngineCoreOutput]] = {}
        """By request, with its client."""
        self._as_vllm: set[str] = set()
        self._joined: set[str] = set()
        self._uncertain: set[str] = set()

    def begin_update(
        self,
        scheduled: SchedulerOutput,
        requests: Mapping[str, Request],
        find_name: Callable[[str], str | None],
    ) -> None:
        """Called before vLLM takes the outputs of a step, which may end its requests.

        find_name: the front end's name of one of vLLM's requests, None for a draft.
        """
        for wanted in (self._as_vllm, self._joined, self._uncertain):
            wanted.clear()
        for own in scheduled.num_scheduled_tokens:
            request, name = requests.get(own), find_name(own)
            if request is None or name is None:
                continue
            args = read_noise_args(request)
            if not args.get(LOGPROBS):
                self._as_vllm.add(name)
            elif not args.get(EACH_TOKEN):
                self._joined.add(name)
            if wants_entropies(request):
                self._uncertain.add(name)

    def end_update(self, outputs: dict[int, EngineCoreOutputs]) -> None:
        """Pack the outputs of a step, and keep back those that can wait."""
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
        """The front end has aborted these requests, or all (None)."""
        if names is None:
            self._kept.clear()
            return
        for name in {names} if isinstance(names, str) else names:
            self._kept.pop(name, None)

    def _keep(self, client: int, output: EngineCoreOutput) -> EngineCoreOutput | None:
        """What is to be sent of a request now, None if nothing."""
        name = output.request_id
        if name in self._as_vllm:
            return output
        if output.new_logprobs is not None:
            pack_logprobs(output, with_entropies=name in self._uncertain)
        if name not in self._joined:
            return output
        kept = self._kept.get(name)
        if not output.finished:
            if kept is None:
                output.new_token_ids = list(output.new_token_ids)  # it may be the runner's own
                self._kept[name] = (client, output)
            else:
                extend(kept[1], output)
            return None
        if kept is not None:
            prepend(self._kept.pop(name)[1], output)
        return output


def extend(earlier: EngineCoreOutput, later: EngineCoreOutput) -> None:
    """Add to a packed output the tokens behind it."""
    extras, more = earlier.kv_transfer_params or {}, later.kv_transfer_params or {}
    earlier.new_token_ids += later.new_token_ids
    for key, value in more.items():
        if key in LISTS and key in extras:
            extras[key] += value
        else:
            extras[key] = value


def prepend(earlier: EngineCoreOutput, last: EngineCoreOutput) -> None:
    """Put the tokens of a packed output before those of the request's last one."""
    extend(earlier, last)
    last.new_token_ids, last.kv_transfer_params = earlier.new_token_ids, earlier.kv_transfer_params
    last.prefill_stats = last.prefill_stats or earlier.prefill_stats
