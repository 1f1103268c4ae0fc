"""Names that the daemon and our code inside vLLM share. This module does not import vLLM."""

from typing import Any

ARGS_KEY = "flashedge"
"""Our entry in SamplingParams.extra_args and in VllmConfig.additional_config."""
BOUNDARY = "boundary"
"""In an output: the stop_reason of a step that ends at a boundary. In a request's parameters: the
name of the rule that finds the boundary, None if the step goes on to the answer's end."""
ENTROPY_RULE = "entropy_rule"
"""In a request's parameters: the rule that ends the step before an uncertain token, or None."""
GUIDED_FROM = "guided_from"
"""In a request's parameters: the index in its prompt where the text of its grammar begins. Without
it the grammar begins with the first generated token."""
PATH_FROM = "path_from"
"""In a request's parameters: the index in its prompt where the tokens of a search's path begin."""
CLIENT = "client"
"""In a request's parameters: the name of its client, from whose earlier texts its tokens may be
drafted. Empty if it is not known."""
PROGRAM = "program"
"""In a request's parameters: the key of its program, which orders the waiting requests."""
DETERMINISTIC = "deterministic"
"""In a request's parameters: True if its tokens must not depend on the rest of the batch."""
THINKS = "thinks"
"""In a request's parameters: the tags of the thinking that its model may write before it answers,
None if it does not (`stop_strings`)."""
BOUNDARIES = "boundaries"
"""In our additional_config: the rules that find boundaries, by their names."""
STAGES_PIPE = "flashedge_stages"
"""The attribute of a multiprocessing process that holds the pipe for `start_stages`."""
ADOPTED = "flashedge_adopted"
"""In an output: how many tokens its step adopted from a draft."""
LOGPROBS = "flashedge_logprobs"
"""In a request's parameters: True if its log-probabilities come packed (`outputs`). In an
output: the log-probability of each of its tokens."""
EACH_TOKEN = "each_token"
"""In a request's parameters: True if its tokens go to the daemon one by one (`outputs`)."""
TOKEN_DRAFTS = "token_drafts"
"""In a request's parameters: True if its tokens may be drafted (`token_drafts`)."""
ENTROPIES = "flashedge_entropies"
"""In an output: the entropy in nats of each token's distribution, if the request asks for the
`search.step_rules.TOP` likeliest tokens."""
CONFIDENCES = "flashedge_confidences"
"""In a request's parameters: True if it asks for the TOP likeliest tokens to learn how sure the
model is. In an output: `certainty.token_confidence` of each of its tokens."""
KV_FIXED = "kv_fixed"
"""In our additional_config: True if the KV tensor keeps all of its memory under any quota."""
KV_START = "kv_start"
"""In our additional_config: the share of the KV blocks, from the first on, that have memory at the
start. Without it all blocks have memory, and the quota may reserve any of them."""
PLAIN_SAMPLING = "plain_sampling"
"""In our additional_config: True if PyTorch draws the tokens, without a kernel of ours."""
SECOND_RUNNER = "second_runner"
"""In our additional_config: True if vLLM's second model runner computes the engine's steps."""
STEP_RECORD = "flashedge_step_record"
"""The attribute of a multiprocessing process that holds the memory of its `step_record`."""


def read_config(vllm_config: Any) -> dict[str, Any]:
    """Our part of a VllmConfig."""
    return dict(vllm_config.additional_config.get(ARGS_KEY, {}))


def read_args(params: Any) -> dict[str, Any]:
    """Our part of a request's sampling or pooling parameters."""
    extra = getattr(params, "extra_args", None) or getattr(params, "extra_kwargs", None) or {}
    return extra.get(ARGS_KEY) or {}
