"""Measures what an engine holds in memory, and its largest step, in the engine's process.

The step is the one that vLLM profiles with: as many tokens as a step may have, without attention,
then sampling for as many sequences as a step may have, with our noise and log-probabilities.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from vllm import SamplingParams
from vllm.config import CUDAGraphMode
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.worker.gpu.input_batch import InputBatch

from flashedge.engine.vllm.inside.keys import ARGS_KEY
from flashedge.engine.vllm.inside.noise import PositionNoise
from flashedge.engine.vllm.inside.runner_kind import RunnerKind, find_kind
from flashedge.models.memory.engine_memory import CONTEXT_BYTES
from flashedge.profiler.gpu import import_pynvml

ReadPeak = Callable[[], int]


@torch.inference_mode()
def measure_step(runner: Any, kv_bytes: int, *, is_kv_torchs: bool) -> dict[str, int]:
    """Run the largest step and return its peaks in bytes, with what the process holds.

    "resident" is the most that the process has had resident in RAM, or what it holds of its card
    beside its KV. "weights" are 0 on a CPU, where vLLM packs them into a form of its library's that
    PyTorch does not see.

    kv_bytes, is_kv_torchs: see `count_beside_kv`. Not read on a CPU.
    """
    on_cpu = runner.device.type == "cpu"
    Path("/proc/self/clear_refs").write_text("5")  # Linux keeps the peak until it is told to forget
    with watch_peak(runner.device) as read_peak:
        hidden, last = run_forward(runner)
        if runner.is_pooling_model:
            runner._dummy_pooler_run(hidden)
        forward = read_peak()
    logits, sampler = 0, 0
    if not runner.is_pooling_model:
        with watch_peak(runner.device) as read_peak:
            logits = sample(runner, last)
            sampler = read_peak()
    del hidden, last
    single, logprobs = (0 if runner.dtype == torch.float32 else 4), 4
    both = logits * (runner.dtype.itemsize + single)
    return {
        "weights": 0 if on_cpu else int(runner.model_memory_usage),
        "forward": forward,
        "logits": both,
        "logprobs": logits * logprobs,
        "noise": max(0, sampler - both - logits * logprobs),
        "resident": _read_resident_peak()
        if on_cpu
        else count_beside_kv(kv_bytes, is_kv_torchs=is_kv_torchs),
    }


def run_forward(runner: Any) -> Any:
    """Run a forward pass of as many tokens as a step may have. Returns all hidden states, and those
    of the last token of each sequence."""
    if find_kind(runner) is RunnerKind.SECOND:
        return runner._dummy_run(runner.max_num_tokens, skip_attn=True, is_profile=True)
    return runner._dummy_run(
        runner.max_num_tokens,
        is_profile=True,
        skip_eplb=True,
        cudagraph_runtime_mode=CUDAGraphMode.NONE,
    )


def sample(runner: Any, last: torch.Tensor) -> int:
    """Sample one token for each of as many sequences as a step may have. Returns the number of
    logits.

    last: (sequences, hidden).
    """
    logits = runner.model.compute_logits(last)
    count = logits.numel()
    if find_kind(runner) is RunnerKind.SECOND:
        runner.sampler(logits, fill_slots(runner, len(logits)))
    else:
        runner.sampler(logits=logits, sampling_metadata=build_metadata(runner, len(logits)))
    return int(count)


def build_params() -> SamplingParams:
    """Those of a request like `VllmGenerator`'s, with truncation."""
    ours = {"seed": 1, "temperature": 0.8, "top_k": 0, "top_p": 0.95}
    return SamplingParams(temperature=0.0, logprobs=0, extra_args={ARGS_KEY: ours})


def fill_slots(runner: Any, rows: int) -> InputBatch:
    """What the second runner's sampler gets in a step of `rows` such requests. None is open, so
    their slots are free."""
    params = build_params()
    for slot in range(rows):
        runner.sampler.add_request(slot, params)
    runner.sampler.apply_staged_writes()
    return InputBatch.make_dummy(rows, rows, runner.input_buffers)


def build_metadata(runner: Any, rows: int) -> SamplingMetadata:
    """What the first runner's sampler gets in such a step."""
    noise = PositionNoise(runner.vllm_config, runner.device, False)
    params = build_params()
    added: list[Any] = [(row, params, [0], []) for row in range(rows)]
    noise.update_state(BatchUpdate(batch_size=rows, removed=[], added=added, moved=[]))
    empty = torch.empty(0, device=runner.device)
    return SamplingMetadata(
        temperature=None,
        all_greedy=True,
        all_random=False,
        top_p=None,
        top_k=None,
        generators={},
        max_num_logprobs=0,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=empty,
        presence_penalties=empty,
        repetition_penalties=empty,
        output_token_ids=[[] for _ in range(rows)],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors([noise]),
        spec_token_ids=[[] for _ in range(rows)],
    )


@contextmanager
def watch_peak(device: torch.device) -> Iterator[ReadPeak]:
    """Yields a function that returns the most bytes that the block has held at once so far."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield lambda: torch.cuda.max_memory_allocated() - before
        return
    with LiveBytes() as live:
        yield lambda: live.peak


def _read_resident_peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


# ---------------------------------------------------------------- tensors


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the storages that operations create while it is active.

    Those of earlier tensors do not count, nor do views.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor):
                self._mark(tensor.untyped_storage(), 0)
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self._mark(storage, storage.nbytes())
        return result

    def _mark(self, storage: torch.UntypedStorage, size: int) -> None:
        """Count a storage once, until it is freed."""
        key = storage._cdata
        if key in self._known:
            return
        self._known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


# ---------------------------------------------------------------- what a process holds of its card


MOST_OUTSIDE = 8 << 30
"""More than a process ever holds outside torch's memory and its KV. A process of another container
may have the same id as ours, and NVML then tells that one's bytes."""


def count_beside_kv(kv_bytes: int, *, is_kv_torchs: bool) -> int:
    """Bytes of the current card that this process holds beside its KV.

    kv_bytes: of the KV on this card now. is_kv_torchs: whether torch allocated it.
    """
    torchs = torch.cuda.memory_reserved() - (kv_bytes if is_kv_torchs else 0)
    card = torch.cuda.get_device_properties(torch.cuda.current_device())
    told = ask_nvml(import_pynvml(), f"GPU-{card.uuid}")
    if told is not None and torchs <= told - kv_bytes <= torchs + MOST_OUTSIDE:
        return told - kv_bytes
    return torchs + CONTEXT_BYTES


def ask_nvml(nvml: Any, card: str) -> int | None:
    """NVML's count for this process on the card with this id. None where NVML does not tell it."""
    try:
        nvml.nvmlInit()
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(card)
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                if process.pid == os.getpid():
                    return process.usedGpuMemory
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError:
        pass
    return None
