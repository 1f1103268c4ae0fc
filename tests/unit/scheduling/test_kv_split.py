"""The KV split: known settings, offload, hysteresis, too little memory; and the loads of levels."""

from dataclasses import replace
from typing import Any

import pytest

from flashedge.errors import ConfigError
from flashedge.models.shape import ModelShape
from flashedge.scheduling.costs import RTX_4090, RooflineCurve
from flashedge.scheduling.kv import stages
from flashedge.scheduling.kv.split import HostLink, KvMemory, KvSplit
from flashedge.scheduling.kv.stages import EngineCost, Stage, Workload
from flashedge.search.tree import ROOT, NodeStatus, Tree
from flashedge.types import FinishReason, Granularity, NodeId
from scripts.bench.flashtts.shapes import MISTRAL_7B, QWEN25_1_5B
from tests.support.search_rig import make_segment
from tests.support.split_rig import Whole

MIB = 1 << 20
LEVEL = Workload(paths=64, context_tokens=400, live_tokens=4900, step_tokens=52)
LINK = HostLink(bytes_per_s=25e9, capacity_bytes=1 << 35, switch_s=0.005)
FLAT = EngineCost(curve=Whole(fixed=1, each=0), kv_bytes_per_token=1)


def of_shape(shape: ModelShape) -> EngineCost:
    curve = RooflineCurve(device=RTX_4090, shape=shape)
    sizes = {"kv_bytes_per_token": shape.kv_bytes_per_token, "block_tokens": 16}
    return EngineCost(curve=curve, **sizes)


SMALL, VERIFIER_7B = of_shape(QWEN25_1_5B), of_shape(MISTRAL_7B)


def memory(kv_bytes: int, link: HostLink | None = None) -> KvMemory:
    return KvMemory(generator=SMALL, verifier=VERIFIER_7B, kv_bytes=kv_bytes, link=link)


def split_of(kv_bytes: int, load: Workload = LEVEL) -> KvSplit:
    return memory(kv_bytes).choose_split(load)


def refit(split: KvSplit, load: Workload = LEVEL, link: HostLink | None = None) -> Any:
    return memory(0, link).refit_split(split, load)


def test_a_kept_split_is_refitted_to_another_load() -> None:
    few = replace(LEVEL, paths=4, live_tokens=1600)
    standing = split_of(3000 * MIB, few)
    assert (standing.decode_batch, standing.prefill_batch) == (4, 4)
    now = refit(standing)
    assert now.has_same_bytes(standing)
    assert min(now.decode_batch, now.prefill_batch) > 4
    assert refit(standing, few) == standing


@pytest.mark.parametrize(
    ("kv_bytes", "generator_bytes"), [(100, 50), (60, 20), (50, 10), (21, 11), (20, 10)]
)
def test_halves_hold_a_request_of_full_length(kv_bytes: int, generator_bytes: int) -> None:
    generator = replace(FLAT, least_bytes=10)
    verifier = replace(FLAT, least_bytes=40 if kv_bytes > 21 else 10)
    both = KvMemory(generator=generator, verifier=verifier, kv_bytes=kv_bytes)
    split = both.split_evenly()
    expected = generator_bytes, kv_bytes - generator_bytes
    assert (split.generator_bytes, split.verifier_bytes) == expected
    mirrored = replace(both, generator=verifier, verifier=generator).split_evenly()
    assert mirrored.generator_bytes == max(kv_bytes - kv_bytes // 2, verifier.least_bytes)


def test_spare_memory_is_divided_in_proportion() -> None:
    """Some steps are much longer than the mean: a verifier with exactly what the mean step needs
    would evict the tree that it reuses."""
    needs = [Stage(each, LEVEL, decodes=each is SMALL).whole_bytes for each in (SMALL, VERIFIER_7B)]
    for times in (1, 3):
        split = split_of(times * sum(needs))
        expected = pytest.approx([times * need for need in needs], abs=times - 1)
        assert [split.generator_bytes, split.verifier_bytes] == expected


def test_the_part_of_the_live_tree_that_does_not_fit_is_computed_again() -> None:
    whole = Stage(VERIFIER_7B, LEVEL, decodes=False).whole_bytes
    beside = Stage(SMALL, LEVEL, decodes=True).whole_bytes

    def verify_s(kv_bytes: int) -> float:
        split = replace(split_of(3000 * MIB), generator_bytes=beside, verifier_bytes=kv_bytes)
        return refit(split).verify_s

    all_s = verify_s(whole)
    assert all_s < verify_s(whole - 1) < 1.01 * all_s
    again = LEVEL.live_tokens / LEVEL.paths / LEVEL.step_tokens
    assert verify_s(whole // 2) / all_s > 1 + 0.8 * again / 2
    found = split_of(2000 * MIB)
    assert (found.verifier_bytes >= whole, found.prefill_batch) == (True, LEVEL.paths)


def test_offload_is_chosen_with_little_memory_and_a_fast_link() -> None:
    kv_bytes = 600 * MIB  # half of the verifier's tree fits alone, less beside the generator
    split = memory(kv_bytes, LINK).choose_split(LEVEL)
    assert split.offload
    assert split.generator_bytes == split.verifier_bytes == kv_bytes
    assert split.seconds < split_of(kv_bytes).seconds
    moved = Stage(SMALL, LEVEL, decodes=True).whole_bytes + kv_bytes  # all that there is to move
    assert split.transfer_s == pytest.approx(2 * moved / 25e9 + 2 * 0.005)
    ample = memory(9000 * MIB, LINK).choose_split(LEVEL)
    assert ample == split_of(9000 * MIB), "there is enough memory"


@pytest.mark.parametrize("link", [None, LINK])
def test_the_error_for_too_little_memory_names_the_bytes(link: HostLink | None) -> None:
    one = LEVEL.context_tokens + LEVEL.step_tokens
    with pytest.raises(ConfigError, match=f"one path of {one} tokens") as e:
        memory(1000, link).choose_split(LEVEL)
    needed = int(str(e.value.hint).split()[3])
    split = memory(needed, link).choose_split(LEVEL)
    assert split.offload if link else split.decode_batch == 1
    with pytest.raises(ConfigError):
        memory(needed - 1, link).choose_split(LEVEL)


def test_impossible_loads_are_refused() -> None:
    wrong = {"paths": 0}, {"step_tokens": 0}, {"context_tokens": -1}, {"live_tokens": 399}
    for fields in (*wrong, {"live_tokens": 64 * 400 + 1}):
        with pytest.raises(ValueError, match="Workload"):
            replace(LEVEL, **fields)


def test_a_split_is_kept_until_a_move_pays() -> None:
    kv_bytes = 1400 * MIB
    best = split_of(kv_bytes)

    def decide(current: KvSplit, move_s: float = 0.0) -> KvSplit:
        return memory(kv_bytes).decide_split(LEVEL, current, move_s)

    for percent in (5, 10, 15, 20):  # more for the generator: 0.8, 1.7, 2.5, 3.3 % slower
        more = best.generator_bytes * (100 + percent) // 100
        worse = refit(replace(best, generator_bytes=more, verifier_bytes=kv_bytes - more))
        gain_s = worse.seconds - best.seconds
        assert (gain_s > 0.02 * best.seconds) == (percent > 12)
        assert decide(worse) == (best if percent > 12 else worse)
        assert decide(worse, move_s=1.01 * gain_s) == worse
        assert decide(worse, move_s=0.99 * gain_s) == decide(worse)
    assert decide(replace(best, generator_bytes=MIB)) == best, "it no longer fits"
    little = memory(1000)
    assert little.decide_split(LEVEL, best) == little.split_evenly(), "less than one path"


def test_a_chosen_split_is_predicted_to_take_as_long_as_when_it_was_chosen() -> None:
    for kv_bytes in (300 * MIB, 1500 * MIB, 9000 * MIB):
        for link in (None, LINK):
            split = memory(kv_bytes, link).choose_split(LEVEL)
            assert refit(split, link=link).seconds == pytest.approx(split.seconds)
    longer = replace(LEVEL, context_tokens=10**6, live_tokens=10**6)
    assert refit(split_of(300 * MIB), longer) is None
    assert refit(memory(600 * MIB, LINK).choose_split(LEVEL)) is None


STEP = Granularity(max_tokens=100)


def load_of(paths: int, context: int, live: int, step: int) -> Workload:
    return Workload(paths=paths, context_tokens=context, live_tokens=live, step_tokens=step)


def grow(tree: Tree, node: int, tokens: int) -> Tree:
    segment = make_segment("x", tokens=(7,) * tokens, finish=FinishReason.BOUNDARY)
    done = tree.add_segment(NodeId(node), segment)
    return done.mark({NodeId(node): NodeStatus.ACTIVE})


def test_the_first_level_shares_its_prompt() -> None:
    tree, _ = Tree.from_seed(1).expand(ROOT, 4)
    short, to_end = Granularity(max_tokens=30), Granularity(max_tokens=600, to_end=True)
    for step, tokens in ((STEP, stages.FIRST_STEP_TOKENS), (short, 30), (to_end, 300)):
        assert stages.estimate_load(tree, 50, step) == load_of(4, 50, 50, tokens)


def test_shared_ancestors_count_once_and_dead_branches_not_at_all() -> None:
    tree, _ = Tree.from_seed(1).expand(ROOT, 3)
    for node, tokens in ((1, 10), (2, 20), (3, 90)):
        tree = grow(tree, node, tokens)
    assert stages.estimate_load(tree, 50, STEP) is None
    for node, count in ((1, 2), (2, 1)):
        tree, _ = tree.expand(NodeId(node), count)
    assert stages.estimate_load(tree, 50, STEP) == load_of(3, (60 + 60 + 70) // 3, 80, 40)
    tree, _ = Tree.from_seed(1).expand(ROOT, 2)
    tree, _ = grow(tree, 1, 10).expand(NodeId(1), 1)
    expected = load_of(2, (50 + 60) // 2, 60, 10)
    assert stages.estimate_load(tree, 50, STEP) == expected, "a path that still grows counts"


def test_the_loads_of_several_runs_are_added_up() -> None:
    a, b = load_of(4, 100, 200, 40), load_of(1, 300, 300, 90)
    loads = [stages.combine_loads(runs) for runs in ([a, b], [a], [])]
    assert loads == [load_of(5, 140, 500, 50), a, None]
