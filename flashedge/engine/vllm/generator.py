"""The generator engine: streams steps and ends them at their boundaries."""

from __future__ import annotations

import itertools
import sys
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from copy import copy
from dataclasses import asdict, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from flashedge.engine.base import Chunk, ExtendRequest
from flashedge.engine.platform import runs_on_cpu
from flashedge.engine.vllm.codec import HFCodec
from flashedge.engine.vllm.engine import VllmEngine
from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.inside import keys
from flashedge.engine.vllm.process.restarts import EngineProcess
from flashedge.engine.vllm.translate import build_end_error, build_refusal, check_passes
from flashedge.errors import ContextOverflow, EngineDead
from flashedge.scheduling.speculation.step_costs import MOST_SEQUENCES_ON_CPU
from flashedge.search.step_rules import TOP
from flashedge.types import MARKERS, FinishReason, TokenIds

if TYPE_CHECKING:
    from vllm import SamplingParams

STEP_STOP = "\n\n"
"""The stop string by which `stock` ends a step."""
CHECKED_PARAMS = 1024
"""Parameters of vLLM to keep. Those of a run differ in how many tokens its paths may still have."""
_ids = itertools.count()


class VllmGenerator(VllmEngine):
    """Implements `engine.base.Generator` on one AsyncLLM."""

    def __init__(self, options: EngineOptions, codec: HFCodec) -> None:
        noise = "SlotNoise" if options.second_runner else "PositionNoise"
        processors = [f"flashedge.engine.vllm.inside.noise:{noise}"]
        super().__init__(
            replace(
                options,
                boundaries={name: rule.to_json() for name, rule in codec.rules.items()},
                extra={"logits_processors": processors, **options.extra},
            )
        )
        self.codec = codec
        self.most_drafted = MOST_SEQUENCES_ON_CPU if runs_on_cpu() else sys.maxsize
        self.speculator = VllmSpeculator(self.process)

    def extend(self, request: ExtendRequest) -> AsyncGenerator[Chunk]:
        return self.stream(request, build_params(request, self.codec, self.max_model_len))

    async def stream(self, request: ExtendRequest, params: SamplingParams) -> AsyncGenerator[Chunk]:
        """Run `request` with vLLM's parameters for it (`build_params`). Raises as `extend`."""
        if len(request.token_ids) >= self.max_model_len:
            raise ContextOverflow(
                f"{len(request.token_ids)} tokens do not fit the generator's context of "
                f"{self.max_model_len} tokens",
                hint="shorten the problem or the conversation",
                param="messages",
            )
        if request.deterministic:
            check_passes(self.options)
        from vllm.inputs import tokens_input

        name = f"gen-{next(_ids)}"
        with self.process.open_request(name) as llm:
            outputs = llm.generate(tokens_input(list(request.token_ids)), params, name)
            async with aclosing(outputs) as stream:
                start, is_first = 0, True
                async for output in stream:
                    chunk = self._make_chunk(output, request, start)
                    if is_first:
                        self.process.note_prompt(len(request.token_ids), chunk.cached_tokens)
                        is_first = False
                    start += len(chunk.token_ids)
                    yield chunk

    def _make_chunk(self, output: Any, request: ExtendRequest, start: int) -> Chunk:
        """start: number of tokens in earlier outputs of the request."""
        part = output.outputs[0]
        extras = output.kv_transfer_params or {}
        ids = tuple(part.token_ids)
        return Chunk(
            token_ids=ids,
            logprobs=tuple(extras.get(keys.LOGPROBS, ())),
            finish=self._read_finish(part, request) if output.finished else None,
            cached_tokens=output.num_cached_tokens or 0,
            speculated_tokens=min(len(ids), max(0, extras.get(keys.ADOPTED, 0) - start)),
            entropies=tuple(extras.get(keys.ENTROPIES, ())),
            confidences=tuple(extras.get(keys.CONFIDENCES, ())),
        )

    def _read_finish(self, part: Any, request: ExtendRequest) -> FinishReason:
        if part.finish_reason == "stop":
            markers = self.codec.rules[MARKERS].holds if request.to_boundary else frozenset()
            at_boundary = part.stop_reason in (keys.BOUNDARY, STEP_STOP, *markers)
            return FinishReason.BOUNDARY if at_boundary else FinishReason.STOP
        if part.finish_reason == "length":
            room = self.max_model_len - len(request.token_ids)
            return FinishReason.LENGTH if room <= request.max_tokens else FinishReason.STEP_LIMIT
        is_guided = request.guidance is not None
        raise build_end_error(part.finish_reason, is_guided=is_guided)


def build_params(
    request: ExtendRequest, codec: HFCodec, max_model_len: int, **changes: Any
) -> SamplingParams:
    """Build vLLM's parameters. changes: fields to replace. Raises RequestError."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

    sampling = request.sampling
    ours: dict[str, Any] = {
        "seed": request.seed,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        keys.BOUNDARY: request.step_rule if request.to_boundary else None,
        keys.LOGPROBS: True,
        keys.PATH_FROM: request.answer_start or None,
        keys.PROGRAM: request.program,
        keys.CLIENT: request.client,
        keys.ENTROPY_RULE: request.entropy_rule and asdict(request.entropy_rule),
        keys.CONFIDENCES: request.confidences,
        "continuation": request.continuation and request.continuation.to_json(),
        keys.DETERMINISTIC: request.deterministic,
        keys.EACH_TOKEN: request.each_token,
        keys.TOKEN_DRAFTS: request.token_drafts,
    }
    guided = None
    if request.guidance is not None:
        if request.deterministic:
            raise build_refusal("an answer that has to match a schema")
        guided = StructuredOutputsParams(**request.guidance)
        ours[keys.GUIDED_FROM] = request.answer_start
    fields: dict[str, Any] = {
        "temperature": 0.0,  # `inside.noise` samples, and vLLM takes the argmax
        "max_tokens": max(1, min(request.max_tokens, max_model_len - len(request.token_ids))),
        "stop_token_ids": tuple(sorted(codec.eos_ids)),
        "logprobs": TOP if request.entropy_rule or request.confidences else 0,
        "detokenize": False,
        "skip_clone": True,
        "output_kind": RequestOutputKind.DELTA,
    }
    if guided is None and not changes:
        params = copy(_build_checked(**fields))
        params.extra_args = {keys.ARGS_KEY: ours}
        return params
    changes = {"structured_outputs": guided, "extra_args": {keys.ARGS_KEY: ours}, **changes}
    return SamplingParams(**{**fields, **changes})


@lru_cache(CHECKED_PARAMS)
def _build_checked(**fields: Any) -> SamplingParams:
    """Build parameters that many requests of a level share. vLLM checks new ones field by field,
    which takes longer than the rest of what we do to send a request."""
    from vllm.sampling_params import SamplingParams

    return SamplingParams(**fields)


class VllmSpeculator:
    """Implements `engine.base.Speculator`."""

    def __init__(self, process: EngineProcess) -> None:
        self._process = process
        self._drawn: dict[str, dict[int | None, Sequence[int]]] = {}
        """The last reported numbers of drawn tokens, by run and pid."""

    async def list_complete(self, run: str) -> Mapping[int, TokenIds]:
        found = await self._call("list_complete_drafts", run) or ()
        return {seed: tuple(ids) for seed, ids in found}

    async def drop_unused(self, run: str, levels: Collection[int], seeds: Collection[int]) -> None:
        await self._call_and_count(run, "drop_unused_drafts", run, list(levels), list(seeds))

    async def commit(self, run: str, level: int, children: Mapping[int, int]) -> None:
        await self._call("commit_drafts", run, level, list(children.items()))

    async def end_run(self, run: str) -> tuple[int, int]:
        """See `engine.base`. For a process that died, its last report counts."""
        try:
            await self._call_and_count(run, "end_run", run)
        finally:  # also if the run is cancelled meanwhile
            reports = self._drawn.pop(run, {}).values()
        drawn, certain = zip((0, 0), *reports, strict=True)
        return sum(drawn), sum(certain)

    async def _call_and_count(self, run: str, method: str, *args: Any) -> None:
        """Call a method that returns `DraftBoard.count_drawn`, and keep these numbers."""
        pid = self._process.pid
        drawn = await self._call(method, *args)
        if drawn is not None:
            self._drawn.setdefault(run, {})[pid] = drawn

    async def _call(self, method: str, *args: Any) -> Any:
        """Returns None if the engine is dead."""
        with suppress(EngineDead):
            return await self._process.call(method, *args)
