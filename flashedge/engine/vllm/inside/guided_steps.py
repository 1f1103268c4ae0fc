"""Lets a grammar go on from one step of a path to the next.

vLLM begins a request's grammar with the first token that the request generates. A step of a search
is a request of its own, whose prompt ends with the path so far. So the grammar accepts that path
first. Checked with vLLM 0.32.0.
"""

from bisect import bisect_left

from vllm.parser.engine.adapters import ParserEngineReasoningAdapter
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

from flashedge.engine.vllm.inside.keys import GUIDED_FROM, read_args

_create_grammar = StructuredOutputManager._create_grammar


def create_grammar(self: StructuredOutputManager, request: Request) -> StructuredOutputGrammar:
    """Make a grammar that has accepted the path. Raises ValueError if the path does not match: vLLM
    then fails this request alone."""
    grammar: StructuredOutputGrammar = _create_grammar(self, request)
    path = find_guided_path(self, request)
    if path and not grammar.accept_tokens(request.request_id, path):
        raise ValueError(f"the path of request {request.request_id} does not match its grammar")
    return grammar


def find_guided_path(manager: StructuredOutputManager, request: Request) -> list[int]:
    """Return the prompt's tokens that the grammar describes, without the thinking before them.
    Sets the request's `reasoning_ended` where the path may hold thinking."""
    assert request.sampling_params is not None, "a verifier's requests have no grammar"
    start = read_args(request.sampling_params).get(GUIDED_FROM)
    prompt = request.prompt_token_ids
    if start is None or prompt is None:
        return []
    reasoner = None if manager.enable_in_reasoning else manager._get_reasoner(request)
    if reasoner is None or reasoner.is_reasoning_end(prompt[:start]):
        return prompt[start:]
    asked = request.structured_output_request
    assert asked is not None, "only requests with a grammar come here"
    if isinstance(reasoner, ParserEngineReasoningAdapter) and reasoner.reasoning_end_token_ids:
        found = reasoner.find_reasoning_end(prompt[start:])
        asked.reasoning_ended = found is not None
        if found is None:
            return []
        # Where a tool call ends the thinking, its first token is part of the grammar.
        return prompt[start + found.offset + (0 if found.implicit else 1) :]
    ends = range(start + 1, len(prompt) + 1)  # thinking that has ended does not begin again
    at = bisect_left(ends, True, key=lambda end: reasoner.is_reasoning_end(prompt[:end]))
    asked.reasoning_ended = at < len(ends)
    return prompt[ends[at] :] if asked.reasoning_ended else []
