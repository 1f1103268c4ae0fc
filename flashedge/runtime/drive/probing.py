"""What a model says to a probe: a continuation forked from a path, read and thrown away."""

from __future__ import annotations

from contextlib import aclosing

from flashedge.engine.base import ExtendRequest, Generator
from flashedge.runtime.drive.segments import probe_answer
from flashedge.search.base import Probe
from flashedge.types import Sampling, TokenIds


def probe_request(
    probe: Probe, path: TokenIds, sampling: Sampling, generator: Generator
) -> ExtendRequest | None:
    """Continue path + suffix; None where no token fits behind them. path: with its prompt."""
    ids = (*path, *generator.codec.encode(probe.suffix))
    room = generator.max_model_len - len(ids)
    if room <= 0:
        return None
    return ExtendRequest(
        token_ids=ids,
        seed=probe.seed,
        sampling=sampling,
        max_tokens=min(probe.max_tokens, room),
        to_boundary=False,
    )


async def probed(request: ExtendRequest, suffix: str, generator: Generator) -> tuple[TokenIds, str]:
    """Tokens up to the end of the answer that `suffix` opened, or all there are; their text."""
    said: TokenIds = ()
    async with aclosing(generator.extend(request)) as stream:
        async for chunk in stream:
            said = (*said, *chunk.token_ids)
            kept, text, whole = probe_answer(said, suffix, generator.codec)
            if whole:
                return kept, text
    return said, generator.codec.decode(said)
