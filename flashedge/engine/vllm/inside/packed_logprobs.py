"""The log-probabilities of a step's tokens on their way to the daemon, as plain numbers.

vLLM sends three arrays for each token: candidates, their log-probabilities and the token's rank. To
decode them and to build its own objects from them took the daemon more time than all else that it
does for a token. A step needs one number for each token. The engine puts it where vLLM passes a
dictionary on as it is.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from vllm.outputs import RequestOutput
from vllm.v1.engine import EngineCoreOutput

from flashedge.engine.vllm.inside.keys import LOGPROBS

_add = RequestOutput.add


def pack_logprobs(output: EngineCoreOutput) -> None:
    """Replace vLLM's arrays. In the engine's process."""
    found = output.new_logprobs.logprobs[:, 0].tolist()
    output.kv_transfer_params = {**(output.kv_transfer_params or {}), LOGPROBS: found}
    output.new_logprobs = None


def join_outputs(self: RequestOutput, next_output: RequestOutput, aggregate: bool) -> None:
    """Stand for vLLM's `RequestOutput.add` in the daemon's process.

    vLLM joins outputs that nobody has read yet. It joins the tokens, but keeps the dictionary of
    the later output alone.
    """
    earlier = (self.kv_transfer_params or {}).get(LOGPROBS)
    _add(self, next_output, aggregate)
    if aggregate and earlier:
        later = self.kv_transfer_params or {}
        self.kv_transfer_params = {**later, LOGPROBS: [*earlier, *later.get(LOGPROBS, ())]}
