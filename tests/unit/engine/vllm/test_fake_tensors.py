"""The code for a card's tensors, on fake ones that raise where the host would wait for values."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from vllm import SamplingParams

from flashedge.engine.vllm.inside import noise
from flashedge.engine.vllm.inside.card_drafts import Source
from flashedge.engine.vllm.inside.keys import ARGS_KEY
from flashedge.engine.vllm.inside.kv.save_area import SaveArea
from flashedge.engine.vllm.inside.noise import PositionNoise, SlotNoise, TokenDrawer
from flashedge.engine.vllm.inside.sampling import naive
from flashedge.engine.vllm.inside.sampling.naive import FIELDS
from flashedge.engine.vllm.inside.table_speculator import SPAN, TableSpeculator
from tests.support.host_driver import FakeCuda
from tests.support.sampling_rows import make_row

CARD = torch.device("cuda", 0)
VOCAB = 5000
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class NoWaiting(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in COPIES:
            source = args[1] if func is COPIES[1] else args[0]
            devices = {source.device.type, result.device.type}
            waits = not (kwargs.get("non_blocking") or True in args[2:])
            assert len(devices) == 1 or (source.device.type == "cpu" and not waits), (
                f"the host waits for a copy from {source.device} to {result.device}"
            )
        return result


@pytest.fixture(autouse=True)
def card() -> Iterator[None]:
    with FakeTensorMode():
        yield


def make_processor(*cuts: tuple[int, float]) -> PositionNoise:
    """A processor without the kernel, with a row for each (top-k, top-p), and one that is not
    sampled."""
    processor = PositionNoise.__new__(PositionNoise)
    processor.drawer = drawer = TokenDrawer.__new__(TokenDrawer)
    drawer._device, drawer._token_hashes, drawer.kernel = CARD, None, None
    drawer._draw, drawer._hash_tokens = naive.sample, naive.hash_tokens
    processor._rows = {i: make_row(i, top_k=k, top_p=p) for i, (k, p) in enumerate(cuts)}
    return processor


@pytest.mark.parametrize("cuts", [[(0, 1.0)] * 3, [(0, 1.0), (20, 0.9)], [(0, 0.5)]])
def test_the_naive_twin_never_makes_the_host_wait(cuts: list[tuple[int, float]]) -> None:
    with NoWaiting():
        make_processor(*cuts).apply(torch.empty(len(cuts) + 1, VOCAB, device=CARD))


def test_the_kernel_gets_its_rows_by_one_copy_on_the_card() -> None:
    seen: list[torch.Tensor] = []
    processor = make_processor((0, 1.0), (20, 0.9))
    processor.drawer.kernel = lambda logits, rows: seen.append(rows)
    with NoWaiting():
        processor.apply(torch.empty(3, VOCAB, device=CARD))
    (rows,) = seen
    assert (rows.device, rows.dtype, tuple(rows.shape)) == (CARD, torch.int64, (2, FIELDS))


def test_rows_of_drafted_tokens_are_packed_on_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """For five rows of two requests, one of which has min-p."""
    fused = pytest.importorskip("flashedge.engine.vllm.inside.sampling.fused")
    seen: list[Any] = []
    monkeypatch.setattr(fused, "pack_slots", lambda *tensors: tensors)
    model = SimpleNamespace(get_vocab_size=lambda: VOCAB)
    config: Any = SimpleNamespace(model_config=model, additional_config={ARGS_KEY: {}})
    states: Any = SimpleNamespace(device=CARD, max_num_reqs=4)
    monkeypatch.setattr(noise, "load_kernel", lambda *_: lambda logits, rows: seen.append(rows))
    processor = SlotNoise(config, states)
    for slot, least in ((3, 0.1), (1, 0.0)):
        args = {"seed": 7, "temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": least}
        processor.add_request(slot, SamplingParams(extra_args={ARGS_KEY: args}))
    slots = torch.empty(5, dtype=torch.int64, device=CARD)
    context: Any = SimpleNamespace(
        idx_mapping_np=np.array([3, 1]), expanded_idx_mapping=slots, pos=torch.empty_like(slots)
    )
    with NoWaiting():
        processor.apply(torch.empty(5, VOCAB, device=CARD), context)
    ((fields, of_rows, last),) = seen
    assert (fields.device, fields.dtype, tuple(fields.shape)) == (CARD, torch.int64, (4, FIELDS))
    assert of_rows is slots
    assert last is context.pos


def test_drafting_never_makes_the_host_wait() -> None:
    spans: list[tuple[int, ...]] = []

    def count(table: Any, slots: Any, found: torch.Tensor, longest: int) -> None:
        assert {found.device, slots.owners.device} == {CARD}
        spans.append((*found.shape, longest))

    def draft(table: Any, slots: Any, rows: torch.Tensor, tokens: int) -> torch.Tensor:
        return torch.empty(len(rows), tokens, dtype=torch.int64, device=CARD)

    states: Any = SimpleNamespace(
        max_num_reqs=4,
        req_id_to_index={"a": 2},
        all_token_ids=SimpleNamespace(gpu=torch.empty(4, 300, dtype=torch.int32, device=CARD)),
        total_len=SimpleNamespace(gpu=torch.empty(4, dtype=torch.int32, device=CARD)),
    )
    config: Any = SimpleNamespace(num_speculative_tokens=7)
    speculator = TableSpeculator(config, CARD, states)
    speculator._kernels = SimpleNamespace(count=count, draft=draft)
    batch = SimpleNamespace(idx_mapping=torch.empty(3, dtype=torch.int64, device=CARD))
    drawn = torch.empty(3, dtype=torch.int32, device=CARD)
    with NoWaiting():
        speculator.learn(["a"], {"a": Source(5, ((0, 2 * SPAN + 1),))})
        found = speculator.propose(batch, None, None, None, None, drawn, num_speculative_tokens=3)
    assert (found.device, found.dtype, tuple(found.shape)) == (CARD, torch.int64, (3, 7))
    assert spans == [(3, 3, SPAN), (3, 3, 8)]


def test_kv_is_saved_in_host_memory_and_loaded_back() -> None:
    """Index and rows must be on the device of what they index. The host waits for no load."""
    layers = [torch.empty(64, 2, 16, device=CARD, dtype=torch.bfloat16) for _ in range(2)]
    area, block_bytes = SaveArea(FakeCuda()), 2 * 2 * 16 * 2
    assert area.save(layers, [1, 5, 62, 63]) == 4 * block_bytes
    saved = {(rows.device.type, tuple(rows.shape)) for _, chunk in area._chunks for rows in chunk}
    assert saved == {("cpu", (4, 2, 16))}
    with NoWaiting():
        assert area.load(layers, [5, 63], 63) == block_bytes
        assert area.load(layers, [5, 63], 64) == block_bytes
