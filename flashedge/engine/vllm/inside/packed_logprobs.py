"""The log-probabilities of a step's tokens on their way to the daemon, as plain numbers.

vLLM sends three arrays for each token: candidates, their log-probabilities and the token's rank. To
decode them and to build its own objects from them took the daemon more time than all else that it
does for a token. A step needs one number for each token. The engine puts it where vLLM passes a
dictionary on as it is.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from typing import Any

from vllm.outputs import RequestOutput
from vllm.v1.engine import EngineCoreOutput

from flashedge.engine.vllm.inside.keys import ENTROPIES, LOGPROBS
from flashedge.search.entropy import TOP, estimate_entropy

_add = RequestOutput.add


def pack_logprobs(output: EngineCoreOutput, *, with_entropies: bool = False) -> None:
    """Replace vLLM's arrays. In the engine's process."""
    rows = output.new_logprobs.logprobs
    found: dict[str, list[float]] = {LOGPROBS: rows[:, 0].tolist()}
    if with_entropies:
        found[ENTROPIES] = [find_entropy(row) for row in rows]
    output.kv_transfer_params = {**(output.kv_transfer_params or {}), **found}
    output.new_logprobs = None


def find_entropy(row: Any) -> float:
    """Of the distribution that a token was drawn from.

    row: (at least TOP + 1,) float32: the token's log-probability, then those of the likeliest from
    the likeliest on.
    """
    return estimate_entropy(row[1 : TOP + 1].tolist())


def join_outputs(self: RequestOutput, next_output: RequestOutput, aggregate: bool) -> None:
    """Stand for vLLM's `RequestOutput.add` in the daemon's process.

    vLLM joins outputs that nobody has read yet. It joins the tokens, but keeps the dictionary of
    the later output alone.
    """
    earlier = self.kv_transfer_params or {}
    _add(self, next_output, aggregate)
    if aggregate and (ours := [key for key in (LOGPROBS, ENTROPIES) if earlier.get(key)]):
        later = self.kv_transfer_params or {}
        joined = {key: [*earlier[key], *later.get(key, ())] for key in ours}
        self.kv_transfer_params = {**later, **joined}
