"""The model runner of random searches, which keeps requests as vLLM's second runner does."""

from __future__ import annotations

from random import Random
from typing import Any

from scripts.bench.determinism.token_runner import RunnerState
from tests.support.search_machine import SearchMachine, SearchRunner


class SlotRunner(SearchRunner):
    """Keeps requests as vLLM's second runner does. Each has a slot until it is said to have
    left. Its tokens with KV are counted here, and not sent with each step."""

    def __init__(self, draw: Random, slots: int) -> None:
        super().__init__(0.0, draw)
        self._slots_left = slots
        self._computed: dict[str, int] = {}

    def run(self, output: Any) -> Any:
        ran = super().run(output)
        for name, count in output.num_scheduled_tokens.items():
            self._computed[name] += count
        return ran

    def _update_states(self, output: Any) -> None:
        for name in output.finished_req_ids | (output.preempted_req_ids or set()):
            self._leave(name)
        for new in output.scheduled_new_reqs:
            self._leave(new.req_id)
            assert self._slots_left, "a request that has left keeps its slot"
            self._slots_left -= 1
            (blocks,) = new.block_ids
            tokens = list(new.prefill_token_ids)
            self._states[new.req_id] = RunnerState(self.asked[new.req_id], tokens, [], list(blocks))
            self._computed[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        assert not cached.resumed_req_ids, "a request that comes back is sent whole"
        for index, name in enumerate(cached.req_ids):
            assert cached.num_computed_tokens[index] == self._computed[name], "it was taken back"
            if (more := cached.new_block_ids[index]) is not None:
                self._states[name].blocks += more[0]

    def _leave(self, name: str) -> None:
        if self._states.pop(name, None) is not None:
            self._slots_left += 1
            del self._computed[name]


class SlotMachine(SearchMachine):
    deterministic = 0.0

    def _make_runner(self) -> SlotRunner:
        self.scheduler.use_v2_model_runner = True
        return SlotRunner(self.draw, self.scheduler.max_num_running_reqs)
