"""What does it save the daemon to get log-probabilities as plain numbers?

    python -m scripts.bench.foundation.packed_logprobs [--requests 64] [--rounds 6]

The same requests run in turn (A B A B) with vLLM's own arrays and with packed numbers, at once, in
one engine. A figure is the processor time of this process, which stands for the daemon, for each
token, as the median over rounds; the ratio is taken within a round. The last line is JSON.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from typing import Any

from flashedge.config import load_config
from flashedge.engine.base import ExtendRequest
from flashedge.engine.vllm.generator import VllmGenerator, build_params
from flashedge.engine.vllm.inside.keys import ARGS_KEY, LOGPROBS
from flashedge.engine.vllm.pair import VllmPair
from flashedge.models.registry import find_pair
from flashedge.types import Problem, Sampling
from scripts.bench.daemon import read_problems, report

TOKENS = 100
SIDES = ("vllm", "packed")


async def measure(requests: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as home:
        config = load_config(environ={"FLASHEDGE_HOME": home})
        pair = VllmPair(find_pair("bundled", config), config)
        await pair.start()
        try:
            found: dict[str, list[float]] = {side: [] for side in SIDES}
            for number in range(rounds + 1):
                for side in SIDES:
                    figure = await run_round(pair.generator, requests, is_packed=side == "packed")
                    if number:  # the first one warms up
                        found[side].append(figure)
        finally:
            await pair.stop()
    ratios = [a / b for a, b in zip(found["vllm"], found["packed"], strict=True)]
    report(
        requests=requests,
        rounds=rounds,
        us_a_token={side: round(1e6 * statistics.median(each), 1) for side, each in found.items()},
        ratio=round(statistics.median(ratios), 2),
        ratios=[round(ratio, 2) for ratio in ratios],
    )


async def run_round(generator: VllmGenerator, requests: int, *, is_packed: bool) -> float:
    """Seconds of this process's processor time for each token."""
    rows = read_problems("heldout", requests)
    before = time.process_time()
    counts = await asyncio.gather(
        *(run_request(generator, row["problem"], seed, is_packed) for seed, row in enumerate(rows))
    )
    return (time.process_time() - before) / sum(counts)


async def run_request(generator: VllmGenerator, text: str, seed: int, is_packed: bool) -> int:
    """Returns the number of tokens."""
    prompt = generator.codec.encode_chat(Problem.from_text(text).messages)
    request = ExtendRequest(
        token_ids=prompt,
        seed=seed,
        sampling=Sampling(temperature=0.8),
        max_tokens=TOKENS,
        to_boundary=False,
    )
    params: Any = build_params(request, generator.codec, generator.max_model_len, ignore_eos=True)
    params.extra_args[ARGS_KEY][LOGPROBS] = is_packed
    return sum([len(chunk.token_ids) async for chunk in generator.stream(request, params)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=64, help="requests at once")
    parser.add_argument("--rounds", type=int, default=6)
    asked = parser.parse_args()
    asyncio.run(measure(asked.requests, asked.rounds))


if __name__ == "__main__":
    main()
