"""Names that the daemon and our code inside vLLM share. Both can import it: it imports nothing."""

from typing import Any

ARGS_KEY = "flashedge"
"""Our entry in SamplingParams.extra_args and in VllmConfig.additional_config."""
BOUNDARY = "boundary"
"""The stop_reason of a step that ends at a boundary. In a request's parameters: the name of the
rule that finds the boundary, None where the step may go on past it."""
ENTROPY_RULE = "entropy_rule"
"""In a request's parameters: the rule that ends the step before an uncertain token, or None."""
GUIDED_FROM = "guided_from"
"""In a request's parameters: the index in its prompt where the text of its grammar begins. Missing:
where generation begins."""
PROGRAM = "program"
DETERMINISTIC = "deterministic"
"""In a request's parameters: True if its tokens must not depend on the rest of the batch."""
THINKS = "thinks"
"""In a request's parameters: True if its model may think before it answers (`stop_strings`)."""
SALT = "flashedge-verified"
BOUNDARIES = "boundaries"
STAGES_PIPE = "flashedge_stages"
"""The attribute of a process's object that holds the pipe for `start_stages`."""
DRAWN = "flashedge_drawn"
"""In an output: how many tokens its step adopted from a draft."""
LOGPROBS = "flashedge_logprobs"
"""In a request's parameters: True if its log-probabilities come packed (`outputs`). In an
output: the log-probability of each of its tokens."""
EACH_TOKEN = "each_token"
"""In a request's parameters: True if each token is sent at once (`outputs`)."""
ENTROPIES = "flashedge_entropies"
"""In an output: the entropy in nats of each token's distribution, if the request asks for the
`search.step_rules.TOP` likeliest tokens."""

KV_FIXED = "kv_fixed"
"""In our additional_config: True if the KV tensor keeps all of its memory under any quota."""
KV_START = "kv_start"
"""In our additional_config: share of the KV blocks, from the first on, that have memory at the
start. Missing: all of them."""

PLAIN_SAMPLING = "plain_sampling"
"""In our additional_config: True if PyTorch draws the tokens on a card too."""

SECOND_RUNNER = "second_runner"
"""In our additional_config: True if vLLM's second model runner computes the engine's steps."""

STEP_RECORD = "flashedge_step_record"
"""The attribute of a process's object that holds the memory of its `step_record`."""


def read_config(vllm_config: Any) -> dict[str, Any]:
    """Our part of a VllmConfig."""
    ours: dict[str, Any] = vllm_config.additional_config.get(ARGS_KEY, {})
    return ours


def read_args(params: Any) -> dict[str, Any]:
    """Our part of a request's sampling or pooling parameters."""
    of_vllm = getattr(params, "extra_args", None) or getattr(params, "extra_kwargs", None) or {}
    return of_vllm.get(ARGS_KEY) or {}
