"""Converts between text and token ids by a checkpoint's own tokenizer and chat template."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from flashedge.engine.base import NO_VARIABLES
from flashedge.engine.vllm.prompts.encoder import PromptEncoder, load_tokenizer
from flashedge.errors import CheckpointError
from flashedge.search.step_rules import BoundaryRule, build_rules
from flashedge.types import Message, ThinkTags, TokenIds


class HFCodec:
    """Implements `engine.base.Codec`. Raises CheckpointError if the tokenizer can't be loaded or
    its template lacks one of `variables`, which all conversations get."""

    def __init__(
        self,
        path: Path,
        variables: Mapping[str, Any] = NO_VARIABLES,
        *,
        think_tags: ThinkTags | None = None,
    ) -> None:
        self.tokenizer = load_tokenizer(path)
        for name in variables:
            if name not in str(self.tokenizer.chat_template):
                raise CheckpointError(
                    f"{path}: the chat template has no variable {name!r}",
                    hint="correct chat_template_kwargs in models.toml",
                )
        self._prompts = PromptEncoder(self.tokenizer)
        self._variables = variables
        self.think_tags = think_tags
        self.eos_ids = _read_eos_ids(path, self.tokenizer.eos_token_id)

    @property
    def vocab_size(self) -> int:
        return len(self.tokenizer)

    def encode_chat(
        self, messages: Sequence[Message], variables: Mapping[str, Any] = NO_VARIABLES
    ) -> TokenIds:
        turns = [{"role": m.role, "content": m.content} for m in messages]
        given = {**self._variables, **variables}
        return self._prompts.encode_chat(turns, add_generation_prompt=True, **given)

    def encode(self, text: str) -> TokenIds:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(
            self.tokenizer.decode(
                list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )

    @cached_property
    def longest_token(self) -> int:
        return max(map(len, self.tokenizer.get_vocab()))

    @cached_property
    def rules(self) -> Mapping[str, BoundaryRule]:
        """See `engine.base`. Decodes each token of the vocabulary once."""
        return build_rules((i, str(self.tokenizer.decode([i]))) for i in range(self.vocab_size))


def _read_eos_ids(path: Path, tokenizer_id: int | None) -> frozenset[int]:
    """The ids that end an answer: those of the generation config and the tokenizer's own."""
    try:
        ids = GenerationConfig.from_pretrained(path, local_files_only=True).eos_token_id
    except OSError:
        ids = None
    found = ids if isinstance(ids, list) else [ids]
    return frozenset(i for i in (*found, tokenizer_id) if i is not None)
