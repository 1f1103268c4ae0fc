"""Does KV memory move between the engines, and back?

    python -m scripts.bench.flashtts.memory [--pair NAME] [--mib 256]

Both engines fill their KV pools with distinct prompts. Then the generator's share goes down and up
again, and both engines are offloaded (saved, dropped) and restored. After each step the script
prints what each engine has mapped and given back since its start, and the resident memory of its
process, which on a card is the host's. `kv_memory` says by what means memory moves, or why none
does; `moved_mib` is what moved with the shares, `offloaded_mib` by offloading. The tokens of one
request are compared throughout. The last line is JSON.
"""

import argparse
import asyncio
import random
from collections.abc import Awaitable
from typing import Any

from flashedge.engine.base import ExtendRequest, ScoreRequest
from flashedge.engine.vllm.engine import VllmEngine
from flashedge.types import Problem, Sampling
from scripts.bench.daemon import report
from scripts.bench.flashtts.kv_rig import Rig, rig
from scripts.bench.smoke import parse_arguments

MIB = 1 << 20
ENGINES = ("generator", "verifier")
Row = dict[str, Any]
"""What a step left, by engine."""
MOVES = ("mapped", "unmapped")
"""Memory that an engine took, and gave back."""
PROBLEM = Problem.from_text("Tom has 57 cards. Day 1: drops 44. How many cards has he?")


async def measure(name: str, kv_bytes: int) -> None:
    rows: list[Row] = []
    async with rig(kv_bytes, name) as here:
        generator, verifier = here.pair.generator, here.pair.verifier
        engines: dict[str, VllmEngine] = dict(zip(ENGINES, (generator, verifier), strict=True))

        async def add_row(step: str, action: Awaitable[Any] | None = None) -> None:
            clock = asyncio.get_running_loop().time
            began = clock()
            if action is not None:
                await action
            seconds = clock() - began
            resident = here.read_resident_bytes()
            found = {
                name: {
                    "resident": round(resident[name] / MIB, 1),
                    **{m: (await engine.view()).kv_moved[f"{m}_bytes"] / MIB for m in MOVES},
                }
                for name, engine in engines.items()
            }
            rows.append({"step": step, "seconds": round(seconds, 4), **found})
            print(rows[-1], flush=True)

        expected = await draw_tokens(here)
        await add_row("started")
        await add_row("both filled", asyncio.gather(fill_generator(here), fill_verifier(here)))
        for share in (0.5, 0.25, 0.1, 0.9, 0.5):
            await add_row(f"generator has {share:.2f}", divide(here, share))
        moved_mib = subtract(rows[1], rows[-1])
        same = [await draw_tokens(here) == expected]
        await add_row("filled again", asyncio.gather(fill_generator(here), fill_verifier(here)))
        filled = rows[-1]
        await add_row("generator offloaded", generator.offload())
        await add_row("verifier offloaded too", verifier.offload())
        await add_row("verifier restored", verifier.restore())
        await add_row("generator restored", generator.restore())
        same.append(await draw_tokens(here) == expected)
        await add_row("generator's KV dropped", generator.offload(keep=False))
        await add_row("generator restored, empty", generator.restore())
        same.append(await draw_tokens(here) == expected)
        means = {name: engine.health().kv_memory for name, engine in engines.items()}
    report(
        pair=name,
        kv_mib=kv_bytes / MIB,
        kv_memory=means,
        moved_mib=moved_mib,
        offloaded_mib=subtract(filled, rows[-1]),
        rows=rows,
        tokens_identical=same,
    )


def subtract(before: Row, after: Row) -> dict[str, dict[str, float]]:
    return {name: {m: after[name][m] - before[name][m] for m in MOVES} for name in ENGINES}


async def divide(here: Rig, share: float) -> None:
    part = int(here.kv_bytes * share)
    engines: list[tuple[VllmEngine, int]] = [
        (here.pair.generator, part),
        (here.pair.verifier, here.kv_bytes - part),
    ]
    for engine, size in engines:
        await engine.budget(size)


async def draw_tokens(here: Rig) -> tuple[int, ...]:
    ids: list[int] = []
    async for chunk in here.pair.generator.extend(build_request(here, (), 1, 100)):
        ids += chunk.token_ids
    return tuple(ids)


async def fill_generator(here: Rig) -> None:
    """Send distinct prompts until more was computed than the pool holds."""
    view = await here.pair.generator.view()
    length = here.pair.generator.max_model_len - 100
    draw = random.Random(0)
    for _ in range(-(-view.blocks_total * view.block_tokens // (16 * length))):
        await asyncio.gather(*(_fill(here, draw, length) for _ in range(16)))


async def _fill(here: Rig, draw: random.Random, length: int) -> None:
    filler = tuple(draw.choices(range(10, 400), k=length))
    async for _ in here.pair.generator.extend(build_request(here, filler, 0, 1)):
        pass


async def fill_verifier(here: Rig) -> None:
    view = await here.pair.verifier.view()
    draw = random.Random(1)
    scored = 0
    while scored < view.blocks_total * view.block_tokens:
        found = await asyncio.gather(
            *(
                here.pair.verifier.score(
                    ScoreRequest(
                        problem=PROBLEM,
                        steps=(" ".join(str(draw.randint(10, 99)) for _ in range(120)),),
                    )
                )
                for _ in range(16)
            )
        )
        scored += sum(one.tokens for one in found)


def build_request(here: Rig, filler: tuple[int, ...], seed: int, tokens: int) -> ExtendRequest:
    return ExtendRequest(
        token_ids=(*here.pair.generator.codec.encode_chat(PROBLEM.messages), *filler),
        seed=seed,
        sampling=Sampling(temperature=0.8),
        max_tokens=tokens,
        to_boundary=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", default="bundled")
    parser.add_argument("--mib", type=int, default=256, help="KV of both engines together")
    asked = parse_arguments(parser, mib=64)
    asyncio.run(measure(asked.pair, asked.mib * MIB))


if __name__ == "__main__":
    main()
