"""The options that one engine process starts with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashedge.config import Config
from flashedge.engine.layout import EngineCards, Layout
from flashedge.engine.platform import BLOCK_TOKENS
from flashedge.engine.vllm.inside import keys
from flashedge.models.memory.engine_memory import (
    CPU_SEQUENCES,
    MAX_STEP_TOKENS,
    PASS_SIZES,
    choose_graph_sizes,
)
from flashedge.models.memory.fit import list_sequences
from flashedge.models.shape import BoundedLayers
from flashedge.models.specs import ModelSpec
from flashedge.scheduling.speculation.token_drafts import MOST_ON_CARD, list_widths
from flashedge.types import THINK_CLOSE, THINK_OPEN, ThinkTags

if TYPE_CHECKING:
    from vllm.engine.arg_utils import AsyncEngineArgs


LEAST_FREE = 0.01
"""Share of the device's memory that has to be free for vLLM to start an engine. vLLM's default of
0.92 would refuse the second engine on a card. The memory plan bounds both (`models.memory.fit`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    name: str
    """generator or verifier"""
    model: Path
    """The checkpoint's folder."""
    dtype: str
    max_model_len: int
    kv_bytes: int
    """Bytes of the whole KV pool."""
    kv_start_bytes: int | None = None
    """Bytes of the KV pool backed by memory at start. None backs all of it; on CPU the pages are
    committed on first write."""
    kv_fixed: str | None = None
    """Why the KV pool keeps all of its memory under any quota. None if it does not."""
    boundaries: Mapping[str, Any] = field(default_factory=dict)
    """The generator's rules (`search.step_rules.build_rules`) as JSON, by name."""
    plain_sampling: bool = False
    """Whether PyTorch draws the tokens (`sampling.naive`), not our kernel for the device."""
    visible_cards: str | None = None
    """CUDA_VISIBLE_DEVICES of the engine's process. None leaves it as the daemon's."""
    cards: int = 1
    """Cards that share the model by tensor parallelism, 1 on a CPU. Memory sizes are per card."""
    card_names: str | None = None
    """See `engine.base.Health.cards`."""
    owns_cards: bool = False
    """Whether the other engine runs on other cards."""
    batch_invariant: bool = False
    """Whether vLLM's batch-invariant kernels compute the steps, and the sums between cards."""
    max_num_seqs: int = CPU_SEQUENCES
    max_batched_tokens: int = MAX_STEP_TOKENS
    """Most tokens of one step, at least `max_num_seqs`."""
    async_scheduling: bool = False
    """Whether a step is scheduled while the one before it is computed."""
    token_drafts: bool = False
    """Whether tokens of plain requests are drafted (`inside.token_drafts`, `inside.card_drafts`). A
    search says this in each of its requests."""
    second_runner: bool = False
    """Whether vLLM's second model runner computes the steps (`inside.runner_kind`)."""
    card_drafts: int = 0
    """Most tokens that the second model runner drafts of a sequence in a step, one less than a
    power of two."""
    graph_sizes: tuple[int, ...] = ()
    """Sizes of a step with a CUDA graph, in sequences for a generator, in tokens for a verifier.
    Empty runs the model without graphs and uncompiled."""
    block_tokens: int = 32
    """A multiple of 32 on a CPU."""
    bounded: BoundedLayers | None = None
    """The model's layers that do not keep the KV of all tokens."""
    text_only: bool = False
    """Whether the model sees or hears too, of which nothing is loaded."""
    quantization: str | None = None
    """How vLLM quantizes the layers while it loads them, one of `models.specs.ONLINE_METHODS`."""
    reasoning_parser: str | None = None
    """vLLM's parser of the model's thinking, during which guided decoding waits."""
    think_tags: ThinkTags = (THINK_OPEN, THINK_CLOSE)
    """What the model writes around its thinking."""
    compact_json: bool = False
    """See `models.specs.ModelSpec`."""
    hang_s: float = 60.0
    """An engine that gives no sign of life for this long is killed and started again."""
    slowest_token_s: float = 0.0
    """Seconds that a step may take per token, if those of all its tokens exceed `hang_s`."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields of vLLM's AsyncEngineArgs."""

    def build_args(self) -> AsyncEngineArgs:
        from vllm.engine.arg_utils import AsyncEngineArgs

        return AsyncEngineArgs(**self.list_args())

    def list_args(self) -> dict[str, Any]:
        """The fields of vLLM's AsyncEngineArgs by name."""
        # By class name: on CPU vLLM turns "uni" into a second process, which gets OMP's variables.
        # Ours are set before any process starts, and one process is faster than two.
        uniproc = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
        args: dict[str, Any] = {
            "model": str(self.model),
            "dtype": self.dtype,
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_batched_tokens,
            "kv_cache_memory_bytes": self.kv_bytes,
            "gpu_memory_utilization": LEAST_FREE,
            "block_size": self.block_tokens,
            "enable_prefix_caching": True,
            "enforce_eager": not self.graph_sizes,
            "cudagraph_capture_sizes": list(self.graph_sizes) or None,
            "async_scheduling": self.async_scheduling,
            "tensor_parallel_size": self.cards,
            "distributed_executor_backend": "mp" if self.cards > 1 else uniproc,
            "scheduler_cls": "flashedge.engine.vllm.inside.scheduler.EdgeScheduler",
            "worker_extension_cls": "flashedge.engine.vllm.inside.kv.worker.KvMemory",
            "disable_log_stats": True,
            "enable_log_requests": False,
            "additional_config": {keys.ARGS_KEY: self._build_additional_config()},
        }
        has_states = self.bounded is not None and self.bounded.window is None
        # A state can't go back to before a wrong token.
        if self.card_drafts and not has_states:  # by our own speculator in the place of vLLM's
            args["speculative_config"] = {
                "method": "ngram_gpu",
                "num_speculative_tokens": self.card_drafts,
                "num_speculative_tokens_per_batch_size": list_widths(
                    self.max_num_seqs, self.card_drafts
                ),
            }
        if has_states:
            # vLLM makes blocks as large as a state, some 500 tokens. Without this it would find no
            # prefix that ends within one, and each path would be computed anew at each step.
            args["prefix_match_unit"] = self.block_tokens
        if self.text_only:
            args["language_model_only"] = True
        if self.quantization is not None:
            # vLLM's shorthands would also quantize the float32 head of a reward model.
            targets = {"*.layers.*": self.quantization}
            args |= {"quantization": "online", "quantization_config": {"targets": targets}}
        if self.compact_json:
            options = {"backend": "xgrammar", "disable_any_whitespace": True}
            args["structured_outputs_config"] = options
        if self.reasoning_parser:  # vLLM counts budgets of thinking by it, too
            args["reasoning_parser"] = self.reasoning_parser
        return {**args, **self.extra}

    def _build_additional_config(self) -> dict[str, Any]:
        """Build what our code inside vLLM reads. It is part of the key of vLLM's compile cache."""
        start = self.kv_start_bytes
        ours = {
            keys.KV_START: start and start / self.kv_bytes,
            # The memory of several workers' tensors would have to be mapped and unmapped together.
            keys.KV_FIXED: self.kv_fixed is not None or self.cards > 1,
            keys.PLAIN_SAMPLING: self.plain_sampling,
            keys.SECOND_RUNNER: self.second_runner,
            keys.BOUNDARIES: self.boundaries,
        }
        return {name: value for name, value in ours.items() if value}


def place_engine(options: EngineOptions, layout: Layout, name: str) -> EngineOptions:
    """Add the cards on which the layout puts the engine. name: generator or verifier."""
    cards: EngineCards = getattr(layout, name)
    return replace(
        options,
        visible_cards=cards.visible,
        cards=cards.count,
        card_names=cards.describe(),
        owns_cards=not layout.is_shared,
    )


def build_options(
    name: str,
    spec: ModelSpec,
    path: Path,
    kv_start_bytes: int,
    room: int | str,
    config: Config,
    *,
    on_card: bool,
) -> EngineOptions:
    """Build the options of an engine, without its cards (`place_engine`) and what `VllmPair` adds.

    name: generator or verifier. path: of its checkpoint. kv_start_bytes: size of its KV at start.
    room: bytes that its KV may grow to, or why it stays at `kv_start_bytes`.
    """
    fixed, most = (room, kv_start_bytes) if isinstance(room, str) else (None, room)
    features = config.features
    sequences = list_sequences(config, on_card=on_card)[0]
    graphs = choose_graph_sizes(sequences, samples=name == "generator", on_card=on_card)
    if name == "verifier" and on_card and features.verifier_graphs:
        graphs = PASS_SIZES
    drafts = features.token_drafts and name == "generator"
    on_device = drafts and features.second_runner and features.card_drafts
    is_async = on_card if features.async_scheduling is None else features.async_scheduling
    return EngineOptions(
        name=name,
        model=path,
        dtype=spec.dtype,
        quantization=spec.quantization,
        max_model_len=spec.max_model_len,
        kv_bytes=most,
        kv_start_bytes=kv_start_bytes if fixed is None and on_card else None,
        kv_fixed=fixed if on_card else None,
        plain_sampling=not features.fused_sampling,
        batch_invariant=config.batch_invariant and on_card,
        max_num_seqs=sequences,
        max_batched_tokens=max(MAX_STEP_TOKENS, sequences),
        async_scheduling=is_async and name == "generator",
        token_drafts=on_device or (drafts and not (is_async or features.second_runner)),
        second_runner=features.second_runner and name == "generator",
        card_drafts=MOST_ON_CARD if on_device else 0,
        graph_sizes=graphs,
        block_tokens=BLOCK_TOKENS["cuda" if on_card else "cpu"],
        hang_s=config.engine_hang_s,
    )
