"""Encodes prompts as a serving pair does, without starting its engines."""

from __future__ import annotations

from collections.abc import Sequence

from flashedge.config import Config
from flashedge.models.folders import resolve_model
from flashedge.models.specs import Pair
from flashedge.runtime.lengths.base import EncodePrompt
from flashedge.types import Message, TokenIds


def build_prompt_encoder(pair: Pair, config: Config) -> EncodePrompt:
    """Load the generator's tokenizer. Imports transformers. Raises CheckpointError."""
    from flashedge.engine.vllm.codec import HFCodec

    generator = pair.generator
    codec = HFCodec(resolve_model(generator, config), generator.chat_template_kwargs)

    def encode(messages: Sequence[Message]) -> TokenIds:
        turns = tuple(messages)
        if pair.system_prompt and turns[0].role != "system":
            turns = (Message(role="system", content=pair.system_prompt), *turns)
        return codec.encode_chat(turns)

    return encode


def count_vocabulary(pair: Pair, config: Config) -> int:
    """Count the tokens that the generator's tokenizer knows. Raises CheckpointError."""
    from tokenizers import Tokenizer

    file = resolve_model(pair.generator, config) / "tokenizer.json"
    return int(Tokenizer.from_file(str(file)).get_vocab_size(with_added_tokens=True))
