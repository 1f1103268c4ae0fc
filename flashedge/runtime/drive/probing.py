"""Asks a chain for its answer: a continuation forked from its path, whose tokens are discarded."""

from __future__ import annotations

from contextlib import aclosing

from flashedge.engine.base import ExtendRequest, Generator
from flashedge.runtime.drive.segments import ProbeAnswer
from flashedge.runtime.request.request import Request
from flashedge.search.base import Probe
from flashedge.types import TokenIds


def build_probe_request(
    probe: Probe, path: TokenIds, spec: Request, generator: Generator, program: str | None
) -> ExtendRequest | None:
    """Build the request that continues path + suffix. None where no token fits after them.
    path: the prompt and the path; program: what the run's requests carry."""
    ids = (*path, *generator.codec.encode(probe.suffix))
    room = generator.max_model_len - len(ids)
    if room <= 0:
        return None
    return ExtendRequest(
        token_ids=ids,
        seed=probe.seed,
        sampling=spec.sampling,
        max_tokens=min(probe.max_tokens, room),
        to_boundary=False,
        program=program,
        deterministic=spec.deterministic,
        each_token=True,
    )


async def run_probe(
    request: ExtendRequest, suffix: str, generator: Generator
) -> tuple[TokenIds, str]:
    """Generate up to the end of the answer that `suffix` opens, or to the request's last token.
    Returns the tokens and their text."""
    answer = ProbeAnswer(suffix, generator.codec)
    async with aclosing(generator.extend(request)) as stream:
        async for chunk in stream:
            if answer.feed(chunk.token_ids):
                break
    return answer.read()
