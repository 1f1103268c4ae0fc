"""Random events on the real scheduler, with a model that is a hash, and KV that remembers the
tokens up to each slot, and whether a pass wrote it. What a scheduler must guarantee:

- a pass reads nothing but KV that a pass wrote, of the right tokens;
- a shared step reads KV of the right tokens;
- no request gets blocks that another writes to;
- each verify pass draws a token, and what comes out is the hash's, whatever shared steps drew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from flashedge.engine.vllm.inside.determinism.windows import find_pass
from flashedge.engine.vllm.inside.keys import ARGS_KEY, DETERMINISTIC
from scripts.bench.determinism.token_runner import (
    VOCABULARY,
    Span,
    TokenRunner,
    build_request,
    draw_token,
)
from tests.support.async_core import make_async_core, step_core

BLOCK = 8
STOP = 7


@dataclass(slots=True)
class Asked:
    prompt: tuple[int, ...]
    seed: int
    max_tokens: int
    deterministic: bool
    tokens: list[int] = field(default_factory=list)
    is_over: bool = False

    def list_expected(self, max_model_len: int) -> list[int]:
        path = list(self.prompt)
        while len(path) < max_model_len and len(path) - len(self.prompt) < self.max_tokens:
            path.append(draw_token(path, self.seed))
            if path[-1] == STOP:
                break
        return path[len(self.prompt) :]


class HashRunner(TokenRunner):
    asked: dict[str, Asked]  # type: ignore[assignment]

    def __init__(self, error_rate: float, draw: Random, *, is_async: bool = False) -> None:
        super().__init__(error_rate, draw)
        self._is_async = is_async
        self._batch: set[str] = set()
        """The requests of the step before: of these alone the real runner has the last token."""
        self._slots: dict[tuple[int, int], tuple[int, bool]] = {}
        """By block and place: hash of the tokens up to it, and whether a pass wrote it."""
        self._written: set[tuple[int, int]] = set()

    def run(self, output: Any) -> Any:
        replay_pass = find_pass(output)
        if replay_pass is not None:
            counts = output.num_scheduled_tokens
            assert sum(counts.values()) <= replay_pass.rows
            assert all(self.asked[name].deterministic for name in counts)
        self._written = set()
        cached = output.scheduled_cached_reqs
        for name, count in zip(cached.req_ids, cached.num_output_tokens, strict=True):
            if self._is_async and count:
                if name in self._batch and name not in cached.resumed_req_ids:
                    continue
                known = cached.all_token_ids[name][-count:]
                assert known == self._states[name].output[:count], "other tokens were sent"
        self._batch = set(output.num_scheduled_tokens)
        ran = super().run(output)
        if replay_pass is not None and replay_pass.is_verify:
            assert all(ran.sampled_token_ids), "each window yields a token"
        return ran

    def compute(self, output: Any, name: str) -> Span:
        blocks, is_pass = self._states[name].blocks, find_pass(output) is not None
        span = super().compute(output, name)
        assert span.end <= len(span.inputs), "nothing is computed from a token that nobody knows"
        for place in range(span.end):
            slot = blocks[place // BLOCK], place % BLOCK
            tokens = hash(tuple(span.inputs[: place + 1]))
            if place < span.start:
                found, by_pass = self._slots[slot]
                assert found == tokens, "KV of other tokens was read"
                assert by_pass or not is_pass, "a pass read KV of a shared step"
            else:
                assert slot not in self._written, "two requests write to one block"
                self._written.add(slot)
                self._slots[slot] = tokens, is_pass
        return span


class Machine:
    requests = 14
    arrival_rate, abort_rate, restart_rate = 0.2, 0.02, 0.005

    def __init__(self, start: Callable[[], Any], seed: int, *, is_async: bool = False) -> None:
        """start: makes a scheduler, at first and after each restart. is_async: whether two steps
        are in flight."""
        self._is_async = is_async
        self.draw, self._restarts = Random(seed), Random(f"{seed} restarts")
        self._start = start
        self.scheduler = start()
        self._error_rate = self.draw.choice((0.0, 0.03, 0.3))
        self._open_core()
        self.asked = [self._make_request() for _ in range(self.requests)]
        self.counters: Counter[str] = Counter()

    def _open_core(self) -> None:
        self.runner = self._start_runner()
        self._core = make_async_core(self.scheduler, self.runner) if self._is_async else None

    def _start_runner(self) -> HashRunner:
        return HashRunner(self._error_rate, self.draw, is_async=self._is_async)

    def _make_request(self) -> Asked:
        draw = self.draw
        common = [draw_token((), 1)] * draw.choice((0, 0, 20, 40))
        prompt = (*common, *draw.choices(range(VOCABULARY), k=draw.randint(1, 40)))
        return Asked(
            prompt=prompt[: self.scheduler.max_model_len - 2],
            seed=draw.randrange(4),
            max_tokens=draw.choice((1, 5, 40, 200)),
            deterministic=draw.random() < 0.7,
        )

    def run(self, max_steps: int = 4000) -> None:
        waiting = list(enumerate(self.asked))
        names: dict[str, Asked] = {}
        idle = 0
        for _ in range(max_steps):
            if waiting and self.draw.random() < self.arrival_rate:
                number, asked = waiting.pop(0)
                names[f"r{number}"] = asked
                self._add(f"r{number}", asked)
            if self.draw.random() < self.abort_rate:
                self._abort(names)
            if self.draw.random() < 0.05:
                total = self.scheduler.view()["blocks_total"]
                self.scheduler.kv.set_quota(self.draw.choice((total, self.draw.randint(1, total))))
            if self._restarts.random() < self.restart_rate:
                self._restart(names)
            if not self.scheduler.has_requests() and not (self._core and self._core.batch_queue):
                if not waiting:
                    break
                continue
            progress = self._step(names)
            idle = 0 if progress else idle + 1
            assert idle < 20, "the scheduler stands still"
        assert all(asked.is_over for asked in self.asked), "a request is never over"
        self._check_end()

    def _step(self, names: dict[str, Asked]) -> bool:
        if self._core is not None:
            outputs, goes_on = step_core(self._core)
            self.counters["overlapping"] += len(self._core.batch_queue)
        else:
            scheduled = self.scheduler.schedule()
            ran = self.runner.run(scheduled)
            outputs = self.scheduler.update_from_output(scheduled, ran)
            goes_on = scheduled.total_num_scheduled_tokens > 0
        for of_client in outputs.values():
            for found in of_client.outputs:
                asked = names[found.request_id]
                self._take(asked, found)
                asked.is_over = asked.is_over or found.finish_reason is not None
        return bool(goes_on)

    def _take(self, asked: Asked, found: Any) -> None:
        asked.tokens += found.new_token_ids

    def _add(self, name: str, asked: Asked) -> None:
        """Send a request, behind the tokens that it has already."""
        self.runner.asked[name] = asked
        path = (*asked.prompt, *asked.tokens)
        request = build_request(name, path, BLOCK, **self._build_params(asked))
        self.scheduler.add_request(request)

    def _build_params(self, asked: Asked) -> dict[str, Any]:
        from vllm import SamplingParams

        params = SamplingParams(
            max_tokens=asked.max_tokens - len(asked.tokens),
            stop_token_ids=[STOP],
            extra_args={ARGS_KEY: {DETERMINISTIC: asked.deterministic, "seed": asked.seed}},
        )
        return {"sampling_params": params, "pooling_params": None}

    def _abort(self, names: dict[str, Asked]) -> None:
        from vllm.v1.request import RequestStatus

        if open_names := [name for name, asked in names.items() if not asked.is_over]:
            name = self.draw.choice(open_names)
            self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            names[name].is_over, names[name].max_tokens = True, 0
            self.counters["aborted"] += 1

    def _restart(self, names: dict[str, Asked]) -> None:
        """Lose the engine. Open requests are sent again to the next one."""
        self._count()
        self.scheduler = self._start()
        self._open_core()
        for name, asked in names.items():
            if not asked.is_over:
                self._add(name, asked)
                self.counters["sent_again"] += 1

    def _count(self) -> None:
        self.counters.update(self.scheduler.passes.counters)
        self.counters["preemptions"] += self.scheduler.view()["preemptions"]
        self.counters["passes"] += self.runner.passes

    def _check_end(self) -> None:
        view = self.scheduler.view()
        assert (view["blocks_used"], view["running"], view["waiting"]) == (0, 0, 0), "a leak"
        assert not self.scheduler.passes.is_open, "a request that is over is remembered"
        self._count()
        self._check_answers()

    def _check_answers(self) -> None:
        for asked in self.asked:
            is_aborted = not asked.max_tokens
            full = replace(asked, max_tokens=1000) if is_aborted else asked
            expected = full.list_expected(self.scheduler.max_model_len)
            length = len(asked.tokens) if is_aborted else len(expected)
            assert asked.tokens == expected[:length], "a token was lost, or is wrong"
