"""What the formats share: a checkpoint's tokenizer, a problem's plain text, a logit's score."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer
from vllm.config import PoolerConfig

from flashedge.errors import CheckpointError
from flashedge.types import Problem, TokenIds

_LETTER = "a"  # nothing that follows it here melts into its token


class PrmTokenizer:
    """A verifier's own tokenizer. Raises CheckpointError when it can't be loaded.

    `bare` ids hold no BOS or EOS. SentencePiece tokenizers put a space before any text; `after`
    encodes what follows other text, without that space, so that joined ids are those of the whole.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self.hf: Any = AutoTokenizer.from_pretrained(path, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(f"{path}: the tokenizer can't be loaded: {error}") from error
        self._letter = self.bare(_LETTER)

    def bare(self, text: str) -> TokenIds:
        return tuple(self.hf.encode(text, add_special_tokens=False))

    def whole(self, text: str) -> TokenIds:
        """With BOS, where the tokenizer adds one; without an EOS that it adds: more follows."""
        ids = tuple(self.hf.encode(text))
        return ids[:-1] if ids and ids[-1] == self.hf.eos_token_id else ids

    def after(self, text: str) -> TokenIds:
        """Ids of `text`, which must begin with white space, in the middle of a text."""
        ids = self.bare(_LETTER + text)
        if ids[: len(self._letter)] != self._letter:
            raise CheckpointError(
                f"{self._path}: the tokenizer melts white space into the word before it",
                hint="this verifier's text can't be written step by step",
            )
        return ids[len(self._letter) :]

    def one(self, ids: TokenIds, token: str) -> int:
        """The id in `ids`, those of `token`. Raises CheckpointError unless it is one."""
        # Qwen's tokenizers name <|endoftext|> as their unknown token, too.
        unknown = self.hf.unk_token_id if token != self.hf.unk_token else None
        if len(ids) != 1 or ids[0] == unknown:
            raise CheckpointError(
                f"{self._path}: {token!r} is not one token of the verifier's vocabulary",
                hint="the checkpoint is of another family, or its tokenizer is another model's",
            )
        return ids[0]


def plain_text(problem: Problem) -> str:
    """The conversation as plain text, for PRMs that know no roles: the question; with earlier
    turns before it, if any. A system message tells the generator how to answer: left out."""
    turns = (m.content.strip() for m in problem.messages if m.role != "system")
    return "\n".join(turn for turn in turns if turn)


def logits_of_tokens() -> PoolerConfig:
    """The head's bare output at every token. The sigmoid is left to `sigmoid` below: torch's own,
    over a column of rows, rounds differently in its vectorized and its scalar part, so that a
    score would depend (by one bit) on how many tokens follow it in the request."""
    return PoolerConfig(task="token_classify", tok_pooling_type="ALL", use_activation=False)


def sigmoid(logit: float) -> float:
    """In double precision, a function of the logit alone."""
    small = math.exp(-abs(logit))
    return (1.0 if logit >= 0 else small) / (1.0 + small)
