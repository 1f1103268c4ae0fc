"""Codecs whose tokens are bytes or words."""

from collections.abc import Sequence

from flashedge.types import Message

EOS = 0


class ByteCodec:
    """A token is a byte (1 to 255), 0 ends the answer. Like byte-level BPE at its worst."""

    eos_ids = frozenset({EOS})
    vocab_size = 256
    longest_token = 1
    think_tags = None

    def encode_chat(self, messages: Sequence[Message], variables: object = None) -> tuple[int, ...]:
        return tuple(b"".join(m.content.encode() for m in messages))

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(i for i in token_ids if i != EOS).decode(errors="replace")


class Words(ByteCodec):
    """A token is a word; a decoded text does not begin with its space (as sentencepiece's)."""

    def decode(self, token_ids: Sequence[int]) -> str:
        return " ".join(f"w{i}" for i in token_ids if i != EOS)
