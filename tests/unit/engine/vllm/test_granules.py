"""Which granules have memory, compared with a model of each byte, and a card's mapped memory."""

import ctypes
import mmap
from collections.abc import Sequence
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashedge.config import load_config
from flashedge.engine.layout import Layout
from flashedge.engine.vllm import card_check
from flashedge.engine.vllm.inside.kv import blocks, cuda_pages
from flashedge.engine.vllm.inside.kv.blocks import BlockLayout, KvRange
from flashedge.engine.vllm.inside.kv.cuda_pages import CudaPages
from flashedge.engine.vllm.inside.kv.save_area import SaveArea
from tests.support.guarded_pages import GuardedPages
from tests.support.host_driver import GRANULE, FakeCuda, HostDriver, make_tensor

BLOCKS = 12


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[BlockLayout], int]:
    """Layers one after the other, or all layers in each block; and a granule size."""
    layers, size = draw(st.integers(1, 3)), draw(st.integers(1, 40))
    gap = draw(st.integers(0, 5))
    if draw(st.booleans()):
        pieces = [BlockLayout(i * BLOCKS * (size + gap), size + gap, size) for i in range(layers)]
    else:
        pieces = [BlockLayout(i * size, layers * size + gap, size) for i in range(layers)]
    return pieces, draw(st.integers(1, 64))


def find_needed(pieces: Sequence[BlockLayout], used: set[int], granule: int) -> set[int]:
    starts = [(layer.start + b * layer.stride, layer.size) for layer in pieces for b in used]
    return {byte // granule for at, size in starts for byte in range(at, at + size)}


def list_granules(spans: Sequence[blocks.GranuleSpan]) -> set[int]:
    found = [granule for first, count in spans for granule in range(first, first + count)]
    assert len(found) == len(set(found))
    return set(found)


@given(
    layouts(), st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, BLOCKS - 1))), max_size=12)
)
def test_a_granule_has_memory_as_long_as_a_used_block_lies_in_it(
    layout: tuple[list[BlockLayout], int], steps: list[tuple[bool, set[int]]]
) -> None:
    pieces, granule = layout
    granules, used, there = blocks.Granules(pieces, BLOCKS, granule), set[int](), set[int]()
    for claims, ids in steps:
        change = granules.claim if claims else granules.release
        changed = list_granules(change(sorted(ids)))
        used = used | ids if claims else used - ids
        assert not changed & there if claims else changed <= there
        there ^= changed
        assert there == find_needed(pieces, used, granule)


def can_be_read(tensor: torch.Tensor) -> bool:
    """Ask the kernel to read it. A read of our own would kill the process."""
    with TemporaryFile() as file:
        address, size = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(1)
        return bool(ctypes.CDLL(None).write(file.fileno(), address, size) == 1)


PAGE = mmap.PAGESIZE


def make_range(granule: int) -> tuple[blocks.HostPages, KvRange, Sequence[torch.Tensor]]:
    pages = GuardedPages(32 * PAGE, granule)
    layers = pages.tensor.view(2, 8, 2 * PAGE).unbind(0)
    return pages, KvRange(pages, layers, 8), layers


def test_only_claimed_blocks_can_be_touched() -> None:
    _, kv, layers = make_range(3 * PAGE)
    assert kv.block_bytes == 4 * PAGE
    assert not any(can_be_read(layer[i]) for layer in layers for i in range(8))
    kv.claim([0, 1, 2])
    for layer in layers:
        layer[:3] = 7
    assert not can_be_read(layers[0][5])
    assert kv.release([1]) == 0  # each granule of it holds a part of a neighbour
    assert bool((layers[1][2] == 7).all())
    assert kv.release([2]) == 3 * PAGE * 3
    assert not can_be_read(layers[0][2][PAGE:])
    kv.claim([1, 2])
    assert bool((layers[0][0] == 7).all())
    assert not layers[0][2][PAGE:].any()  # zero, not the old content
    kv.claim([1, 2])  # again: nothing happens


@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
def test_a_claim_that_fails_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    pages, kv, layers = make_range(PAGE)
    kv.claim([0])
    map_granules = pages.map

    def at_most_twice(first: int, count: int) -> None:
        if first > 8:
            raise error("the device is full")
        map_granules(first, count)

    monkeypatch.setattr(pages, "map", at_most_twice)
    for claimed in ([3, 4], [0, 3, 4]):
        with pytest.raises(error, match="full"):
            kv.claim(claimed)
        assert not any(can_be_read(layer[i]) for layer in layers for i in (3, 4))
        assert all(can_be_read(layer[0]) for layer in layers), "block 0 was claimed before"
    monkeypatch.undo()
    assert kv.release([0]) == 4 * PAGE
    kv.claim([0, 3, 4])
    assert all(can_be_read(layer[i]) for layer in layers for i in (3, 4))
    assert kv.release([3, 4]) == 8 * PAGE


def test_smaller_kernel_blocks_count_as_parts_of_a_block() -> None:
    pages = blocks.Pages(torch.zeros(64, dtype=torch.int8))
    kv = KvRange(pages, [pages.tensor.view(16, 4)], 4)
    assert ([tuple(layer.shape) for layer in kv.layers], kv.block_bytes) == ([(4, 4, 4)], 16)
    kv.claim([1])
    assert kv.release([1]) == 0  # an ordinary tensor keeps its memory
    assert can_be_read(pages.tensor)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> HostDriver:
    monkeypatch.setattr(cuda_pages, "_make_tensor", make_tensor)
    return HostDriver(free=4)


def make_pages(driver: HostDriver, granules: int) -> CudaPages:
    return CudaPages(granules * GRANULE - 100, 0, cast("Any", driver))


def test_memory_is_zero_when_mapped_and_gone_when_unmapped(driver: HostDriver) -> None:
    pages = make_pages(driver, 8)
    assert (pages.mechanism, pages.granule) == ("device", GRANULE)
    assert len(pages.tensor) == 8 * GRANULE - 100
    assert not any(can_be_read(pages.tensor[i * GRANULE :]) for i in range(8))
    pages.map(2, 3)
    assert (driver.free, len(driver.handles)) == (1, 3)
    assert not pages.tensor[2 * GRANULE : 5 * GRANULE].any()
    pages.tensor[2 * GRANULE : 5 * GRANULE] = 5
    assert pages.unmap(3, 1) == GRANULE
    readable = [i for i in range(8) if can_be_read(pages.tensor[i * GRANULE :])]
    assert readable == [2, 4]
    assert bool((pages.tensor[4 * GRANULE : 5 * GRANULE] == 5).all())
    pages.map(3, 1)
    assert not pages.tensor[3 * GRANULE : 4 * GRANULE].any()
    assert pages.unmap(2, 3) == 3 * GRANULE
    assert (driver.free, driver.handles, driver.mapped) == (4, set(), {})


def test_a_mapping_that_fails_maps_nothing_and_other_errors_are_named(driver: HostDriver) -> None:
    pages, others = make_pages(driver, 8), make_pages(driver, 8)
    others.map(0, 2)
    with pytest.raises(MemoryError, match="no memory left"):
        pages.map(0, 3)
    assert (driver.free, len(driver.handles)) == (2, 2)
    assert not can_be_read(pages.tensor)
    others.unmap(0, 2)
    pages.map(0, 3)
    assert can_be_read(pages.tensor)
    with pytest.raises(RuntimeError, match="cuMemUnmap: CUDA_ERROR_INVALID_VALUE"):
        others._unmap_all([0])
    assert len(driver.handles) == 3


@pytest.mark.parametrize(
    "call", ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemsetD8", "cuStreamSynchronize"]
)
@pytest.mark.parametrize("succeeds", [0, 1])
def test_a_mapping_that_the_driver_refuses_can_be_tried_again(
    driver: HostDriver, call: str, succeeds: int
) -> None:
    """Each call of the driver fails, at once or the second time."""
    pages = make_pages(driver, 8)
    kv = KvRange(pages, [pages.tensor[: 7 * GRANULE].view(7, GRANULE)], 7)
    driver.fail(call, after=succeeds)
    with pytest.raises(RuntimeError, match=f"{call}: CUDA_ERROR_INVALID_VALUE"):
        kv.claim([0, 2])
    assert (driver.free, driver.handles, driver.mapped) == (4, set(), {})
    assert (kv.count_claimed(), kv.mapped_bytes) == (0, 0)
    driver.fail(None)
    assert kv.claim([0, 2]) == kv.mapped_bytes == 2 * GRANULE
    assert can_be_read(pages.tensor)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (None, None),
        ("cuMemMap", "cuMemMap: CUDA_ERROR_INVALID_VALUE"),
        ("cuMemUnmap", "cuMemUnmap: CUDA_ERROR_INVALID_VALUE"),
        ("zeros", "fresh memory is not zero"),
        ("copies", "what was loaded is not what was saved"),
        ("release", r"of 524288 bytes \[524288, 0, .* were mapped and unmapped"),
    ],
)
def test_a_trial_finds_what_a_card_does_wrong(
    monkeypatch: pytest.MonkeyPatch, call: str | None, why: str | None
) -> None:
    """The trial itself, with the driver that is made of host memory."""
    monkeypatch.setattr(cuda_pages, "_make_tensor", make_tensor)
    driver = HostDriver(free=8 * cuda_pages.TRIAL_GRANULES)
    pages = make_pages(driver, 1 + 2 * cuda_pages.TRIAL_GRANULES)
    nothing = staticmethod(lambda *args: (driver.CUresult.CUDA_SUCCESS,))
    if call == "zeros":
        monkeypatch.setattr(HostDriver, "cuMemsetD8", nothing)
    elif call == "copies":
        monkeypatch.setattr(SaveArea, "load", lambda *args: 0)
    elif call == "release":
        monkeypatch.setattr(HostDriver, "cuMemRelease", nothing)
    else:
        driver.fail(call)
    cuda = FakeCuda(driver)
    if why is None:
        cuda_pages.try_pages(pages, cuda)
        assert driver.free == 8 * cuda_pages.TRIAL_GRANULES
        assert cuda.calls.count("copies are queued") == 2
    else:
        with pytest.raises(RuntimeError, match=why):
            cuda_pages.try_pages(pages, cuda)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_the_trial_fails_without_a_card() -> None:
    why = card_check.try_to_map.__wrapped__(None)
    assert why == (
        "a trial of mapping the card's memory failed: RuntimeError: torch sees no CUDA device"
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA card")
def test_the_trial_succeeds_on_a_card() -> None:
    assert card_check.try_to_map.__wrapped__(None) is None


def test_the_reason_why_memory_stays_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial is made only where nothing else keeps the memory in place."""

    def explain(features: str, devices: str = "", **cards: int) -> str | None:
        config = load_config({"features": features} if features else {}, environ={})
        counts = {"generator": 1, "verifier": 1, **cards}
        of = {
            name: SimpleNamespace(
                count=count, visible="3", keys=frozenset(name if devices else "0")
            )
            for name, count in counts.items()
        }
        return card_check.explain_fixed_kv(config, Layout(**cast("Any", of)))

    trials: list[str | None] = ["it fails", None]
    monkeypatch.setattr(
        card_check, "try_to_map", lambda card: trials.pop(0) if card == "3" else card
    )
    monkeypatch.setattr(card_check, "runs_on_cpu", lambda: False)
    assert explain("kv_split=off") == "the feature kv_split is off"
    assert explain("", "apart") == "each engine has cards of its own"
    assert explain("", generator=2) == "the engines are spread over several cards"
    assert explain("mapped_kv=off") == "the feature mapped_kv is off"
    assert explain("mapped_kv=on") is None
    assert (explain(""), explain("")) == ("it fails", None)
    monkeypatch.setattr(card_check, "runs_on_cpu", lambda: True)
    assert explain("mapped_kv=off") is None
