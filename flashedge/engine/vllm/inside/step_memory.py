"""Measures in an engine's process what it holds in memory, and what its largest step takes.

The step is the one that vLLM profiles with: as many tokens as a step may have, without attention,
then sampling for as many sequences as a step may have, with our noise and log-probabilities.
Checked with vLLM 0.32.0.
"""

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
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
from flashedge.engine.vllm.inside.runner_kind import find_kind
from flashedge.models.memory.engine_memory import CONTEXT_BYTES


@torch.inference_mode()
def measure_step(runner: Any, kv_bytes: int, *, kv_is_in_torch: bool) -> dict[str, int]:
    """Run the largest step and return its peaks in bytes, with what the process holds.

    "forward" is the model's peak, above what was held before. "noise" is what sampling takes beside
    "logits" and "logprobs". "resident" is the process's peak of RAM during the step on a CPU, and
    on a card what it holds without its KV after the step. "weights" are 0 on a CPU, where vLLM's
    library packs them into memory that PyTorch does not see. kv_bytes, kv_is_in_torch: see
    `count_beside_kv`; a CPU needs neither.
    """
    Path("/proc/self/clear_refs").write_text("5")  # resets Linux's peak of this process, VmHWM
    with watch_peak(runner.device) as read_peak:
        hidden, last = run_forward(runner)
        if runner.is_pooling_model:
            runner._dummy_pooler_run(hidden)
        forward = read_peak()
    count, sampling = 0, 0
    if not runner.is_pooling_model:
        with watch_peak(runner.device) as read_peak:
            count = sample(runner, last)
            sampling = read_peak()
    del hidden, last
    copy_bytes, logprobs = (0 if runner.dtype == torch.float32 else 4), 4 * count
    logits = count * (runner.dtype.itemsize + copy_bytes)  # the model's, and a copy in float32
    if runner.device.type == "cpu":
        lines = Path("/proc/self/status").read_text().splitlines()
        weights = 0
        resident = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    else:
        weights = int(runner.model_memory_usage)
        resident = count_beside_kv(kv_bytes, kv_is_in_torch=kv_is_in_torch)
    return {
        "weights": weights,
        "forward": forward,
        "logits": logits,
        "logprobs": logprobs,
        "noise": max(0, sampling - logits - logprobs),
        "resident": resident,
    }


def run_forward(runner: Any) -> Any:
    """Run the model once. Returns all hidden states, and those of each sequence's last token."""
    if find_kind(runner) == "second":
        return runner._dummy_run(runner.max_num_tokens, skip_attn=True, is_profile=True)
    return runner._dummy_run(
        runner.max_num_tokens,
        is_profile=True,
        skip_eplb=True,
        cudagraph_runtime_mode=CUDAGraphMode.NONE,
    )


def sample(runner: Any, last: torch.Tensor) -> int:
    """Sample with top-p. last: (sequences, hidden). Returns the number of logits."""
    logits = runner.model.compute_logits(last)
    count, rows = logits.numel(), len(logits)
    ours = {"seed": 1, "temperature": 0.8, "top_k": 0, "top_p": 0.95}
    params = SamplingParams(temperature=0.0, logprobs=0, extra_args={ARGS_KEY: ours})
    if find_kind(runner) == "second":
        for slot in range(rows):  # all are free: no request is open
            runner.sampler.add_request(slot, params)
        runner.sampler.apply_staged_writes()
        runner.sampler(logits, InputBatch.make_dummy(rows, rows, runner.input_buffers))
    else:
        metadata = build_metadata(runner, rows, params)
        runner.sampler(logits=logits, sampling_metadata=metadata)
    return int(count)


def build_metadata(runner: Any, rows: int, params: SamplingParams) -> SamplingMetadata:
    noise = PositionNoise(runner.vllm_config, runner.device, False)
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
def watch_peak(device: torch.device) -> Iterator[Callable[[], int]]:
    """Yields a function that returns the peak bytes that the block itself has held so far."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield lambda: torch.cuda.max_memory_allocated() - before
        return
    with LiveBytes() as live:
        yield lambda: live.peak


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of storages that operations create while it is active. Views have none."""

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


MOST_OUTSIDE = 8 << 30
"""More bytes than a process holds outside torch's memory and its KV. NVML may tell the bytes of a
process with the same pid in another container, and a larger difference gives that away. Chosen by
hand: CUDA's context and kernels can take 1 GiB, and 80 GiB would let any other process pass."""


def count_beside_kv(kv_bytes: int, *, kv_is_in_torch: bool) -> int:
    """Count the bytes of the current card that this process holds without its KV. Where NVML does
    not tell them, they are torch's and CONTEXT_BYTES. kv_bytes: the KV that has memory on this card
    now. kv_is_in_torch: whether torch allocated it."""
    import pynvml

    in_torch = torch.cuda.memory_reserved() - (kv_bytes if kv_is_in_torch else 0)
    card = torch.cuda.get_device_properties(torch.cuda.current_device())
    told = ask_nvml(pynvml, f"GPU-{card.uuid}")
    if told is not None and in_torch <= told - kv_bytes <= in_torch + MOST_OUTSIDE:
        return told - kv_bytes
    return in_torch + CONTEXT_BYTES


def ask_nvml(nvml: Any, card: str) -> int | None:
    """Return the bytes of the card that this process holds, or None if NVML does not tell."""
    with suppress(nvml.NVMLError), ExitStack() as at_end:
        nvml.nvmlInit()
        at_end.callback(nvml.nvmlShutdown)
        handle = nvml.nvmlDeviceGetHandleByUUID(card)
        for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid == os.getpid():
                return process.usedGpuMemory
    return None
