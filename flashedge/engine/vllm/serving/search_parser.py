"""Shows what a search does as reasoning, and leaves its answer to the model's own parsers.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from typing import Any

from vllm.entrypoints.generate.base.protocol import DeltaMessage
from vllm.parser.abstract_parser import DelegatingParser, Parser

from flashedge.engine.vllm.serving.path_outputs import NoteText


def build_search_parser(base: type[Parser] | None) -> type[Parser]:
    """The parser class of a handler that answers by searches.

    base: the handler's own. None: the model has parsers neither of tool calls nor of thinking.
    """

    class SearchParser(base or DelegatingParser):  # type: ignore[misc]
        """Streams notes as reasoning."""

        def parse_delta(
            self, delta_text: str, delta_token_ids: Any, request: Any, *args: Any, **options: Any
        ) -> DeltaMessage | None:
            if isinstance(delta_text, NoteText):
                shown = getattr(request, "include_reasoning", True)
                return DeltaMessage(reasoning=str(delta_text)) if shown else None
            delta: DeltaMessage | None = super().parse_delta(
                delta_text, delta_token_ids, request, *args, **options
            )
            return delta

    return SearchParser
