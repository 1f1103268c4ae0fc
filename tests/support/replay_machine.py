"""Random events on the real scheduler, with a model that is a hash, and KV that remembers the
tokens up to each slot, and whether a pass wrote it. What a scheduler must guarantee:

- a pass reads nothing but KV that a pass wrote, of the right tokens;
- a shared step reads KV of the right tokens;
- no request gets blocks that another writes to;
- each verify pass draws a token, and what comes out is the hash's, whatever shared steps drew;
- a pass of a verifier computes whole windows, from where one begins, or to the end of a path.
"""

import queue
from collections import Counter, deque
from collections.abc import Callable, Container
from concurrent.futures import Future
from dataclasses import dataclass, field
from random import Random
from typing import Any

from flashedge.engine.vllm.inside.determinism import passes
from flashedge.engine.vllm.inside.determinism.windows import find_pass
from flashedge.engine.vllm.inside.keys import ARGS_KEY, DETERMINISTIC
from flashedge.scheduling.determinism import PassShape
from scripts.bench.determinism.token_runner import (
    VOCABULARY,
    Span,
    TokenRunner,
    build_request,
    draw_token,
)

BLOCK = 8
STOP = 7


# ---------------------------------------------------------------- the model


def draw_path(
    prompt: tuple[int, ...],
    seed: int,
    max_tokens: int,
    max_model_len: int,
    ends: Container[int] = (STOP,),
) -> list[int]:
    """The tokens that come behind a prompt, to the first of `ends` or to a limit: the truth."""
    path = list(prompt)
    for _ in range(min(max_tokens, max_model_len - len(prompt))):
        path.append(draw_token(path, seed))
        if path[-1] in ends:
            break
    return path[len(prompt) :]


class HashRunner(TokenRunner):
    asked: dict[str, Any]

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


# ---------------------------------------------------------------- the scheduler


def make_core(scheduler: Any, runner: Any, *, is_async: bool) -> Any:
    """vLLM's EngineCore in the state that an engine gives it, around a runner that stands for the
    model (see `token_runner`). is_async: whether two steps are in flight."""
    from vllm.v1.engine.core import EngineCore

    core: Any = EngineCore.__new__(EngineCore)
    core.vllm_config = scheduler.vllm_config
    core.scheduler, core.model_executor = scheduler, _Executor(runner)
    core.is_pooling_model = core.is_mm_encoder_only = core.check_for_draft_tokens = False
    core.async_scheduling = True
    core.batch_queue_size = 2
    core.batch_queue = deque(maxlen=2) if is_async else None
    core.aborts_queue = queue.Queue()
    core.use_spec_decode = False
    core._weight_version = None
    core.log_stats = False
    return core


def step_core(core: Any) -> tuple[dict[int, Any], bool]:
    """Returns the outputs of a step that ended, and whether anything was computed or ended."""
    if core.batch_queue is None:
        outputs, computed = core.step()
        return outputs, computed
    outputs, computed = passes.step_with_batch_queue(core)
    return outputs or {}, computed or outputs is not None


class _Executor:
    """Stands for vLLM's executor. Its steps are computed at once, and told later."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._ran: Any = None

    def execute_model(self, output: Any, non_block: bool = False) -> Future[Any]:
        self._ran = self._runner.run(output)
        future: Future[Any] = Future()
        future.set_result(None if output.total_num_scheduled_tokens else self._ran)
        return future

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        future: Future[Any] = Future()
        future.set_result(self._ran)
        return future if non_block else self._ran


class SchedulerMachine:
    """A scheduler in vLLM's core loop, whose memory changes, whose requests are aborted, and which
    is lost and started again."""

    queued_aborts = 0.5

    def __init__(self, start: Callable[[], Any], seed: int, *, is_async: bool = False) -> None:
        """start: makes a scheduler, at first and after each loss."""
        self.draw = Random(seed)
        self._start, self._is_async = start, is_async
        self._queues = Random(f"{seed} queued aborts")
        self.counters: Counter[str] = Counter()

    def _open(self) -> None:
        self.scheduler = self._start()
        self.runner = self._make_runner()
        self._core = make_core(self.scheduler, self.runner, is_async=self._is_async)

    def _make_runner(self) -> HashRunner:
        raise NotImplementedError

    def _receive(self, found: Any) -> None:
        """Take what a step has put out for a request."""
        raise NotImplementedError

    @property
    def _is_busy(self) -> bool:
        return bool(self.scheduler.has_requests() or self._core.batch_queue)

    def _step(self) -> bool:
        outputs, goes_on = step_core(self._core)
        self.counters["overlapping"] += len(self._core.batch_queue or ())
        for of_client in outputs.values():
            for found in of_client.outputs:
                self._receive(found)
        return bool(goes_on)

    def _change_quota(self) -> None:
        total = self.scheduler.view()["blocks_total"]
        self.scheduler.kv.set_quota(self.draw.choice((total, self.draw.randint(1, total))))

    def _abort(self, name: str) -> None:
        """End a request between two steps, or between a step's end and its outputs."""
        if self._queues.random() < self.queued_aborts:
            self._core.aborts_queue.put([name])
            self.counters["queued_aborts"] += 1
        else:
            self._core.abort_requests([name])
        self.counters["aborted"] += 1

    def _count(self) -> None:
        self.counters["preemptions"] += self.scheduler.view()["preemptions"]

    def _check_end(self) -> None:
        view = self.scheduler.view()
        assert (view["blocks_used"], view["running"], view["waiting"]) == (0, 0, 0), "a leak"
        assert not self.scheduler.passes.is_open, "a request that is over is remembered"
        self._count()


# ---------------------------------------------------------------- a generator


@dataclass(slots=True)
class Asked:
    prompt: tuple[int, ...]
    seed: int
    max_tokens: int
    deterministic: bool
    tokens: list[int] = field(default_factory=list)
    is_over: bool = False


class Machine(SchedulerMachine):
    requests = 14
    arrival_rate, abort_rate, restart_rate = 0.2, 0.02, 0.005

    def __init__(self, start: Callable[[], Any], seed: int, *, is_async: bool = False) -> None:
        super().__init__(start, seed, is_async=is_async)
        self._restarts = Random(f"{seed} restarts")
        self._error_rate = self.draw.choice((0.0, 0.03, 0.3))
        self._open()
        self.asked = [self._make_request() for _ in range(self.requests)]
        self._names: dict[str, Asked] = {}

    def _make_runner(self) -> HashRunner:
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
        idle = 0
        for _ in range(max_steps):
            if waiting and self.draw.random() < self.arrival_rate:
                number, asked = waiting.pop(0)
                self._names[f"r{number}"] = asked
                self._add(f"r{number}", asked)
            if self.draw.random() < self.abort_rate:
                self._abort_one()
            if self.draw.random() < 0.05:
                self._change_quota()
            if self._restarts.random() < self.restart_rate:
                self._restart()
            if not self._is_busy:
                if not waiting:
                    break
                continue
            idle = 0 if self._step() else idle + 1
            assert idle < 20, "the scheduler stands still"
        assert all(asked.is_over for asked in self.asked), "a request is never over"
        self._check_end()
        self._check_answers()

    def _receive(self, found: Any) -> None:
        asked = self._names[found.request_id]
        self._take(asked, found)
        asked.is_over = asked.is_over or found.finish_reason is not None

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

    def _abort_one(self) -> None:
        if open_names := [name for name, asked in self._names.items() if not asked.is_over]:
            name = self.draw.choice(open_names)
            self._abort(name)
            self._names[name].is_over, self._names[name].max_tokens = True, 0

    def _restart(self) -> None:
        """Lose the engine. Open requests are sent again to the next one."""
        self._count()
        self._open()
        for name, asked in self._names.items():
            if not asked.is_over:
                self._add(name, asked)
                self.counters["sent_again"] += 1

    def _count(self) -> None:
        super()._count()
        self.counters.update(self.scheduler.passes.counters)
        self.counters["passes"] += self.runner.passes

    def _check_answers(self) -> None:
        for asked in self.asked:
            is_aborted = not asked.max_tokens
            limit = 1000 if is_aborted else asked.max_tokens
            expected = draw_path(asked.prompt, asked.seed, limit, self.scheduler.max_model_len)
            length = len(asked.tokens) if is_aborted else len(expected)
            assert asked.tokens == expected[:length], "a token was lost, or is wrong"


# ---------------------------------------------------------------- a verifier


class ScoreRunner(HashRunner):
    """Scores a path by a hash, once its last token is computed."""

    shape: PassShape

    def make_output(self, output: Any, names: list[str]) -> Any:
        from vllm.v1.outputs import ModelRunnerOutput

        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[[] for _ in names],
            pooler_output=[self._score(output, name) for name in names],
        )

    def _score(self, output: Any, name: str) -> Any:
        import torch

        span = self.compute(output, name)
        if find_pass(output) is not None:
            window, length = self.shape.window, len(span.inputs)
            assert span.start % window == 0, "a pass begins within a window"
            assert span.end % window == 0 or span.end == length, "a pass ends within a window"
        if span.end < len(span.inputs):
            return None
        return torch.tensor([draw_token(span.inputs, 0)])


class ScoreMachine(Machine):
    requests = 30
    arrival_rate, abort_rate, restart_rate = 0.8, 0.1, 0.02

    def __init__(self, start: Callable[[], Any], seed: int, *, is_async: bool = False) -> None:
        self._paths: list[tuple[int, ...]] = []
        super().__init__(start, seed, is_async=is_async)

    def _make_runner(self) -> ScoreRunner:
        runner = ScoreRunner(self._error_rate, self.draw)
        runner.shape = self.scheduler.passes.windows.shape
        return runner

    def _make_request(self) -> Asked:
        draw = self.draw
        before = draw.choice(self._paths) if self._paths and draw.random() < 0.6 else ()
        path = (*before, *draw.choices(range(VOCABULARY), k=draw.randint(1, 40)))
        path = path[: self.scheduler.max_model_len - 1]
        self._paths.append(path)
        return Asked(prompt=path, seed=0, max_tokens=1, deterministic=draw.random() < 0.7)

    def _take(self, asked: Asked, found: Any) -> None:
        assert found.pooling_output is not None
        asked.tokens += found.pooling_output.tolist()

    def _build_params(self, asked: Asked) -> dict[str, Any]:
        from vllm import PoolingParams

        params = PoolingParams(
            task="token_classify",
            skip_reading_prefix_cache=False,
            extra_kwargs={ARGS_KEY: {DETERMINISTIC: asked.deterministic}},
        )
        return {"sampling_params": None, "pooling_params": params}

    def _check_answers(self) -> None:
        for asked in self.asked:
            if asked.max_tokens:  # else it was aborted
                expected = [draw_token(asked.prompt, 0)]
                assert asked.tokens == expected, "a score was lost, or is wrong"
