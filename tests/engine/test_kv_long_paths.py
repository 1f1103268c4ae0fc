"""Searches with paths of thousands of tokens, in memory that holds one path of each engine."""

import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.config import load_config
from flashedge.engine.vllm.pair import VllmPair
from flashedge.events import Restored
from flashedge.models.registry import BUNDLED, find_pair
from flashedge.runtime.drive.driver import Outcome
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.kv.split import KvSplit
from flashedge.types import TOKENS, Problem
from tests.engine.conftest import PROBLEM, MappedPair, make_environ, started
from tests.engine.test_kv_manager_on_vllm import drive, manage
from tests.support.engine_rig import Close
from tests.support.runtime_rig import driver_of

MIB = 1 << 20
CONTEXT = 3072
PATH_TOKENS = 2400
SPEC = Request(
    problem=Problem.from_text(PROBLEM),
    pair="bundled",
    n=4,
    branching=2,
    seed=5,
    step_rule=TOKENS,
    max_step_tokens=400,
    max_path_tokens=PATH_TOKENS,
)


def lengthen(name: str, folder: Path) -> Path:
    """Copy a bundled checkpoint. It takes more positions, and its generator's answers never end."""
    shutil.copytree(Path(BUNDLED) / name, folder)
    changes = {
        "config.json": {"max_position_embeddings": CONTEXT, "eos_token_id": 0},
        "generation_config.json": {"eos_token_id": 0},
        "tokenizer_config.json": {"eos_token": "<|endoftext|>"},
    }
    for file, values in changes.items():
        if name == "generator" or file == "config.json":
            path = folder / file
            path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def long_pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmPair]:
    """Engines whose memory is mapped in granules, with room for all paths of a search."""
    config = load_config(
        {"kv_bytes": (96 * MIB, 160 * MIB)}, environ=make_environ(tmp_path_factory)
    )
    pair, home = find_pair("bundled", config), tmp_path_factory.mktemp("long")
    generator, verifier = (
        replace(spec, source=str(lengthen(name, home / name)), max_model_len=CONTEXT)
        for name, spec in (("generator", pair.generator), ("prm", pair.verifier))
    )
    longer = replace(pair, generator=generator, verifier=verifier)
    async with started(MappedPair(longer, config)) as engines:
        yield engines


def fold(outcome: Outcome) -> tuple[object, ...]:
    """The tree and its answer. Log-probabilities and scores are compared closely: they differ in
    their last bits where a prompt was computed in other chunks, with ample memory too."""
    nodes = {
        node.id: replace(
            node,
            scores=node.scores and Close(node.scores),
            segment=node.segment and replace(node.segment, logprobs=Close(node.segment.logprobs)),
        )
        for node in outcome.tree.nodes.values()
    }
    return nodes, outcome.finish.choice, outcome.finish.answer, outcome.cut_by


@pytest.mark.long
@pytest.mark.parametrize("division", ["chosen", "shares", "turns"])
async def test_long_paths_in_little_memory_make_the_same_tree(
    long_pair: VllmPair, division: str
) -> None:
    """Both engines have together what one path of each needs, as the manager chooses, in fixed
    shares, or in turns, where KV goes through host memory. The tree has several times as much."""
    generator, verifier = long_pair.generator, long_pair.verifier
    engines = Engines(generator=generator, verifier=verifier, grader=MathGrader())
    for engine in (generator, verifier):
        await engine.budget(1 << 40)
    ample = await driver_of(engines, SPEC, lambda _: None).run()
    lengths = [node.path_tokens for node in ample.tree.nodes.values()]
    assert lengths.count(PATH_TOKENS) >= SPEC.n
    assert sum(node.num_tokens for node in ample.tree.nodes.values()) > 2 * CONTEXT
    verifier.clear_score_cache()
    before = await generator.view(), await verifier.view()
    shares = [(-(-CONTEXT // view.block_tokens) + 2) * view.block_bytes for view in before]
    whole = sum(shares)
    in_turns = division == "turns"
    split = KvSplit(
        generator_bytes=whole if in_turns else shares[0],
        verifier_bytes=whole if in_turns else shares[1],
        decode_batch=SPEC.n,
        prefill_batch=SPEC.n,
        generate_s=0.0,
        verify_s=0.0,
        offload=in_turns,
        generator_saved=in_turns,
        verifier_saved=in_turns,
    )
    forced = None if division == "chosen" else lambda load: split
    async with manage(long_pair, whole, forced) as manager:
        outcome, events = await drive(engines, manager, SPEC)
        after = await generator.view(), await verifier.view()
    assert fold(outcome) == fold(ample)
    if division == "shares":
        assert after[0].preemptions > before[0].preemptions
    elif in_turns:
        assert sum(isinstance(event, Restored) for event in events) > 5
        for was, view in zip(before, after, strict=True):
            assert all(view.kv_moved[name] - size > whole for name, size in was.kv_moved.items())
