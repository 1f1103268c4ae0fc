"""Random events on the real scheduler, with a model that is a hash, and KV that remembers.

The runner of this file keeps tokens as vLLM's first runner does. Of each KV slot it remembers the
tokens up to it and whether a pass wrote it. It checks what a scheduler must guarantee:

- a pass reads nothing but KV that a pass wrote, of the right tokens;
- a shared step reads KV of the right tokens;
- no request gets blocks that another writes to;
- each verify pass draws a token, and what comes out is the hash's, whatever shared steps drew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.inside.determinism.replay_pass import find_pass
from flashedge.engine.vllm.inside.determinism.verify import REJECTED, accept
from flashedge.engine.vllm.inside.keys import ARGS_KEY, DETERMINISTIC
from flashedge.scheduling.determinism.replay_shape import ReplayShape
from flashedge.search.seeds import mix64

VOCABULARY = 50
BLOCK = 8
STOP = 7
"""Ends an answer where it is drawn."""


def draw_token(path: Sequence[int], seed: int) -> int:
    """The token behind a path: the truth."""
    return mix64(hash(tuple(path)) & 0xFFFFFFFF, seed) % VOCABULARY


def make_scheduler(
    shape: ReplayShape,
    model: Path,
    *,
    blocks: int,
    sequences: int,
    max_model_len: int,
    scheduler_class: Any = None,
) -> Any:
    """A scheduler with blocks of `BLOCK` tokens, without a model. None: EdgeScheduler."""
    import torch
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import init_none_hash
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    from flashedge.engine.vllm.inside.scheduler import EdgeScheduler

    options = EngineOptions(
        name="generator",
        model=model,
        dtype="float32",
        max_model_len=max_model_len,
        kv_bytes=1 << 20,
        max_num_seqs=sequences,
        replay_shape=shape,
    )
    config = options.build_args().create_engine_config()
    config.cache_config.num_gpu_blocks = blocks
    config.cache_config.block_size = BLOCK
    init_none_hash(sha256)
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    return (scheduler_class or EdgeScheduler)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        hash_block_size=BLOCK,
        log_stats=False,
    )


@dataclass(slots=True)
class Asked:
    """A request, and what came out of it."""

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


@dataclass(slots=True)
class RunnerState:
    """What the runner keeps of a request."""

    asked: Asked
    prompt: list[int]
    output: list[int]
    blocks: list[int]

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *self.output]


class HashRunner:
    """Stands for the model runner."""

    def __init__(self, block: int, error_rate: float, draw: Random) -> None:
        self._block = block
        self._error_rate = error_rate
        self._draw = draw
        self.asked: dict[str, Asked] = {}
        self._states: dict[str, RunnerState] = {}
        self._slots: dict[tuple[int, int], tuple[int, bool]] = {}
        """By block and place: hash of the tokens up to it, and whether a pass wrote it."""
        self.passes = self.rollbacks = 0

    def run(self, output: Any) -> Any:
        self._update_states(output)
        replay_pass = find_pass(output)
        names = list(output.num_scheduled_tokens)
        if replay_pass is not None:
            self.passes += 1
            assert sum(output.num_scheduled_tokens.values()) <= replay_pass.rows
            assert all(self.asked[name].deterministic for name in names)
        written: set[tuple[int, int]] = set()
        return self._make_output(output, names, written)

    def _make_output(self, output: Any, names: list[str], written: set[tuple[int, int]]) -> Any:
        from vllm.v1.outputs import ModelRunnerOutput

        drawn = [self._run_request(output, name, written) for name in names]
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=drawn,
        )

    def _update_states(self, output: Any) -> None:
        for name in output.finished_req_ids:
            self._states.pop(name, None)
        for new in output.scheduled_new_reqs:
            prompt = list(new.prompt_token_ids)
            (blocks,) = new.block_ids
            self._states[new.req_id] = RunnerState(self.asked[new.req_id], prompt, [], list(blocks))
        cached = output.scheduled_cached_reqs
        for index, name in enumerate(cached.req_ids):
            state = self._states[name]
            del state.output[cached.num_output_tokens[index] :]
            new_blocks = cached.new_block_ids[index]
            if name in cached.resumed_req_ids:
                state.blocks = list(new_blocks[0])
            elif new_blocks is not None:
                state.blocks += new_blocks[0]

    def _run_request(self, output: Any, name: str, written: set[tuple[int, int]]) -> list[int]:
        state, replay_pass = self._states[name], find_pass(output)
        inputs, guesses, end = self._compute(output, name, written)
        if end < len(state.tokens):
            return []
        seed, known = state.asked.seed, len(state.tokens)
        truth = [draw_token(inputs[:at], seed) for at in range(known, end + 1)]
        if replay_pass is not None and replay_pass.is_verify:
            (row,) = accept([truth], [guesses])
            drawn = [token for token in row if token != REJECTED]
            self.rollbacks += len(drawn) <= len(guesses)
        else:
            drawn = truth
            if self._draw.random() < self._error_rate and state.asked.deterministic:
                drawn = [self._draw.randrange(VOCABULARY)]
        state.output += drawn
        return drawn

    def _compute(
        self, output: Any, name: str, written: set[tuple[int, int]]
    ) -> tuple[list[int], list[int], int]:
        """Read and write KV. Returns the request's tokens with the guesses, the guesses, and how
        many have KV now."""
        state, replay_pass = self._states[name], find_pass(output)
        guesses = output.scheduled_spec_decode_tokens.get(name, [])
        inputs = [*state.tokens, *guesses]
        start, count = self._find_start(output, name), output.num_scheduled_tokens[name]
        end = start + count
        assert end <= len(inputs), "nothing is computed from a token that nobody knows"
        for place in range(start):
            found, by_pass = self._slots[self._find_slot(state, place)]
            assert found == hash(tuple(inputs[: place + 1])), "KV of other tokens was read"
            assert by_pass or replay_pass is None, "a pass read KV of a shared step"
        for place in range(start, end):
            slot = self._find_slot(state, place)
            assert slot not in written, "two requests write to one block"
            written.add(slot)
            self._slots[slot] = hash(tuple(inputs[: place + 1])), replay_pass is not None
        return inputs, guesses, end

    def _find_start(self, output: Any, name: str) -> int:
        for new in output.scheduled_new_reqs:
            if new.req_id == name:
                return int(new.num_computed_tokens)
        cached = output.scheduled_cached_reqs
        return int(cached.num_computed_tokens[cached.req_ids.index(name)])

    def _find_slot(self, state: RunnerState, place: int) -> tuple[int, int]:
        return state.blocks[place // self._block], place % self._block


class Machine:
    """One random schedule."""

    runner_class = HashRunner
    requests = 14
    arrival_rate, abort_rate = 0.2, 0.02
    """Chances of each before a step."""

    def __init__(self, scheduler: Any, seed: int) -> None:
        self.draw = Random(seed)
        self.scheduler = scheduler
        self.runner = self.runner_class(BLOCK, self.draw.choice((0.0, 0.03, 0.3)), self.draw)
        self.asked = [self._make_request() for _ in range(self.requests)]
        self.aborted = 0

    def _make_request(self) -> Asked:
        draw = self.draw
        longest = self.scheduler.max_model_len
        common = [draw_token((), 1)] * draw.choice((0, 0, 20, 40))
        prompt = (*common, *draw.choices(range(VOCABULARY), k=draw.randint(1, 40)))
        return Asked(
            prompt=prompt[: longest - 2],
            seed=draw.randrange(4),
            max_tokens=draw.choice((1, 5, 40, 200)),
            deterministic=draw.random() < 0.7,
        )

    def run(self, max_steps: int = 4000) -> None:
        """Take random events until every request is over."""
        waiting = list(enumerate(self.asked))
        names: dict[str, Asked] = {}
        idle = 0
        for _ in range(max_steps):
            if waiting and self.draw.random() < self.arrival_rate:
                number, asked = waiting.pop(0)
                names[f"r{number}"] = self.runner.asked[f"r{number}"] = asked
                self._add(f"r{number}", asked)
            if self.draw.random() < self.abort_rate:
                self._abort(names)
            if self.draw.random() < 0.05:
                total = self.scheduler.view()["blocks_total"]
                self.scheduler.set_quota(self.draw.choice((total, self.draw.randint(1, total))))
            if not self.scheduler.has_requests():
                if not waiting:
                    break
                continue
            progress = self._step(names)
            idle = 0 if progress else idle + 1
            assert idle < 20, "the scheduler stands still"
        assert all(asked.is_over for asked in self.asked), "a request is never over"
        self._check_end()

    def _step(self, names: dict[str, Asked]) -> bool:
        output = self.scheduler.schedule()
        replay_pass = find_pass(output)
        ran = self.runner.run(output)
        if replay_pass is not None and replay_pass.is_verify:
            assert all(ran.sampled_token_ids), "each window yields a token"
        for of_client in self.scheduler.update_from_output(output, ran).values():
            for found in of_client.outputs:
                asked = names[found.request_id]
                self._take(asked, found)
                asked.is_over = asked.is_over or found.finish_reason is not None
        return bool(output.total_num_scheduled_tokens > 0)

    def _take(self, asked: Asked, found: Any) -> None:
        asked.tokens += found.new_token_ids

    def _add(self, name: str, asked: Asked) -> None:
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher
        from vllm.v1.request import Request

        request = Request(
            request_id=name,
            prompt_token_ids=list(asked.prompt),
            block_hasher=get_request_block_hasher(BLOCK, sha256),
            **self._build_params(asked),
        )
        self.scheduler.add_request(request)

    def _build_params(self, asked: Asked) -> dict[str, Any]:
        from vllm import SamplingParams

        params = SamplingParams(
            max_tokens=asked.max_tokens,
            stop_token_ids=[STOP],
            extra_args={ARGS_KEY: {DETERMINISTIC: asked.deterministic, "seed": asked.seed}},
        )
        return {"sampling_params": params, "pooling_params": None}

    def _abort(self, names: dict[str, Asked]) -> None:
        from vllm.v1.request import RequestStatus

        open_names = [name for name, asked in names.items() if not asked.is_over]
        if open_names:
            name = self.draw.choice(open_names)
            self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            names[name].is_over = True
            names[name].max_tokens = 0
            self.aborted += 1

    def _check_end(self) -> None:
        view = self.scheduler.view()
        assert (view["blocks_used"], view["running"], view["waiting"]) == (0, 0, 0), "a leak"
        assert not self.scheduler.replays, "a request that is over is remembered"
        self._check_answers()

    def _check_answers(self) -> None:
        for asked in self.asked:
            expected = asked.list_expected(self.scheduler.max_model_len)
            if asked.max_tokens:
                assert asked.tokens == expected, "a token was lost, or is wrong"
            else:  # aborted
                full = Asked(asked.prompt, asked.seed, 1000, asked.deterministic)
                known = full.list_expected(self.scheduler.max_model_len)
                assert asked.tokens == known[: len(asked.tokens)]
