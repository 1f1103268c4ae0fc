"""The split compared with a sweep over every pair of batches, and with more memory."""

from dataclasses import replace
from math import inf

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flashedge.errors import ConfigError
from flashedge.scheduling.kv.split import ROUNDING, HostLink, KvMemory
from flashedge.scheduling.kv.stages import EngineCost, Stage, Workload
from tests.support.split_rig import Whole

ENGINES = st.builds(
    EngineCost,
    curve=st.builds(Whole, fixed=st.integers(0, 9), each=st.integers(0, 3)),
    kv_bytes_per_token=st.integers(1, 5),
    block_tokens=st.sampled_from([1, 4]),
    max_batch=st.sampled_from([3, 1 << 30]),
    least_bytes=st.sampled_from([0, 0, 60]),
)
LINKS = st.none() | st.builds(
    HostLink,
    bytes_per_s=st.sampled_from([1.0, 16.0, 1e9]),
    capacity_bytes=st.sampled_from([0, 200, 10**6]),
    switch_s=st.sampled_from([0.0, 4.0]),
)

MEMORIES = st.builds(
    KvMemory, generator=ENGINES, verifier=ENGINES, kv_bytes=st.integers(1, 2000), link=LINKS
)


@st.composite
def loads(draw: st.DrawFn) -> Workload:
    paths, context = draw(st.integers(1, 24)), draw(st.integers(0, 12))
    live = draw(st.integers(context, paths * context))
    step = draw(st.integers(1, 8))
    return Workload(paths=paths, context_tokens=context, live_tokens=live, step_tokens=step)


def estimate_missing(engine: EngineCost, load: Workload, kv_bytes: int) -> float:
    bare = Stage(replace(engine, least_bytes=0), load, decodes=True)
    one, whole = bare.count_bytes(1), bare.count_bytes(load.paths)
    return 0.0 if kv_bytes >= whole else 1 - (kv_bytes - one) / (whole - one)


def list_fitting(stage: Stage, kv_bytes: int) -> list[int]:
    return [b for b in range(1, stage.max_batch + 1) if stage.count_bytes(b) <= kv_bytes]


def sweep(
    engine: EngineCost, load: Workload, kv_bytes: int, decodes: bool, link: HostLink | None = None
) -> float:
    """Seconds with the fastest batch that fits. With `link`, kept KV has to be moved."""
    stage = Stage(engine, load, decodes=decodes)
    fitting = list_fitting(stage, kv_bytes)
    if not fitting:
        return inf
    times = [(-(-stage.paths // b), *stage.estimate_round(b)) for b in fitting]
    kept_s = min(rounds * kept for rounds, kept, _ in times)
    lost_s = min(rounds * lost for rounds, _, lost in times)
    seconds = kept_s + estimate_missing(engine, load, kv_bytes) * (lost_s - kept_s)
    if link is None:
        return seconds
    return min(lost_s, seconds + link.estimate_round_trip(min(kv_bytes, stage.whole_bytes)))


@settings(max_examples=150, deadline=None)
@given(loads(), MEMORIES)
def test_no_division_is_faster(load: Workload, memory: KvMemory) -> None:
    generator, verifier = memory.generator, memory.verifier
    kv_bytes, link = memory.kv_bytes, memory.link
    decode, prefill = Stage(generator, load, decodes=True), Stage(verifier, load, decodes=False)
    totals_s = [
        sweep(generator, load, kv_bytes - share, True) + sweep(verifier, load, share, False)
        for share in range(kv_bytes + 1)
    ]
    shared_s, alternating_s = min(totals_s), inf
    if link is not None:
        alternating_s = sweep(generator, load, kv_bytes, True, link)
        alternating_s += sweep(verifier, load, kv_bytes, False, link)
        alternating_s += 2 * link.switch_s
    try:
        split = memory.choose_split(load)
    except ConfigError:
        assert min(shared_s, alternating_s) == inf
        return
    assert abs(split.seconds - min(shared_s, alternating_s)) < 1e-6
    if abs(alternating_s - shared_s) > 1e-6:
        assert split.offload == (alternating_s < shared_s)
    if split.offload:
        assert split.generator_bytes == split.verifier_bytes == kv_bytes
    else:
        assert split.generator_bytes + split.verifier_bytes == kv_bytes
        ties = [share for share, s in enumerate(totals_s) if s <= shared_s * (1 + ROUNDING)]
        if decode.whole_bytes + prefill.whole_bytes > kv_bytes:  # else both have headroom
            assert split.verifier_bytes == min(ties)
        assert split.decode_batch == max(decode.find_largest_batch(kv_bytes - b) for b in ties)
    assert decode.count_bytes(split.decode_batch) <= split.generator_bytes
    assert prefill.count_bytes(split.prefill_batch) <= split.verifier_bytes
    assert 1 <= split.decode_batch <= min(load.paths, generator.max_batch)
    assert 1 <= split.prefill_batch <= min(load.paths, verifier.max_batch)


@settings(max_examples=150, deadline=None)
@given(loads(), MEMORIES, st.integers(0, 400))
def test_more_memory_is_never_slower(load: Workload, memory: KvMemory, more: int) -> None:
    """As long as the host has room for it: memory that is too large to save is not offloaded."""
    assume(memory.link is None or memory.kv_bytes + more <= memory.link.capacity_bytes)
    try:
        few = memory.choose_split(load)
    except ConfigError:
        assume(False)
    larger = replace(memory, kv_bytes=memory.kv_bytes + more)
    assert larger.choose_split(load).seconds <= few.seconds + 1e-9


@settings(max_examples=100, deadline=None)
@given(loads(), ENGINES, st.integers(0, 3000))
def test_the_largest_batch_is_the_last_that_fits(
    load: Workload, engine: EngineCost, kv_bytes: int
) -> None:
    stage = Stage(engine, load, decodes=True)
    assert stage.find_largest_batch(kv_bytes) == max(list_fitting(stage, kv_bytes), default=0)
