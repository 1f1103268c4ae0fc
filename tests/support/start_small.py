"""Starts the generator's engine with a small checkpoint, and branches: `… KIND FOLDER ARGS`.

A process of its own, since its PYTHONPATH may have a stand-in for torchvision, which vLLM's models
that see import, and which our environment for CPUs lacks (`tests/support/no_images`).
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from flashedge.engine.vllm import compat
from flashedge.engine.vllm.codec import HFCodec
from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.generator import VllmGenerator
from flashedge.engine.vllm.process.start import start_fork_server
from flashedge.models.checkpoint_shape import read_shape
from flashedge.models.checkpoints import check_checkpoint
from flashedge.models.memory.fit import SPARE_TOKENS
from flashedge.models.specs import ModelSpec
from flashedge.types import Problem
from tests.support.engine_rig import ask, generate, generate_all
from tests.support.tiny_checkpoints import POSITIONS, make_checkpoint

PROBLEM = Problem.from_text("Tom has 57 cards. Day 1: drops 44. Day 2: doubles.")
LEVELS, CHILDREN, STEP_TOKENS = 3, 4, 40


async def branch(kind: str, folder: Path, extra: dict[str, Any]) -> dict[str, Any]:
    """Draw `CHILDREN` steps behind one path at each of `LEVELS`, of which the first goes on.

    Returns the tokens of each prompt, and those of them that each child found in the cache."""
    compat.prepare_environment()
    start_fork_server()
    make_checkpoint(kind, folder)
    check_checkpoint(folder, max_model_len=POSITIONS)
    spec = ModelSpec(source=str(folder), dtype="bfloat16", max_model_len=POSITIONS)
    shape = read_shape(folder, spec)
    options = EngineOptions(
        name="generator",
        model=folder,
        dtype=spec.dtype,
        kv_bytes=64 << 20,
        max_num_seqs=16,
        max_model_len=POSITIONS,
        bounded=shape.bounded,
        text_only=shape.is_multimodal,
        extra=extra,
    )
    generator = VllmGenerator(options, HFCodec(folder))
    await generator.start()
    try:
        start = ask(generator, PROBLEM, max_tokens=STEP_TOKENS, temperature=0)
        first = await generate(generator, start)
        path, levels = first.token_ids, []
        for _ in range(LEVELS):
            asked = [
                ask(generator, PROBLEM, seed=seed, after=path, max_tokens=STEP_TOKENS)
                for seed in range(CHILDREN)
            ]
            found = await generate_all(generator, asked)
            cached = [each.cached_tokens for each in found]
            levels.append({"prompt": len(asked[0].token_ids), "cached": cached})
            path += found[0].token_ids
        again = await generate(generator, start)
        least = await generator.budget(0)
        longest = ask(generator, PROBLEM, after=(9,) * (POSITIONS - 80), max_tokens=4)
        return {
            "levels": levels,
            "same_again": again.token_ids == first.token_ids,
            "least_bytes": least,
            "planned_bytes": shape.count_path_bytes(
                POSITIONS + max(SPARE_TOKENS, shape.state_tokens), options.max_batched_tokens
            ),
            "drawn_with_least": len((await generate(generator, longest)).token_ids),
        }
    finally:
        await generator.stop()


if __name__ == "__main__":
    kind, folder, extra = sys.argv[1:]
    print(json.dumps(asyncio.run(branch(kind, Path(folder), json.loads(extra)))))
