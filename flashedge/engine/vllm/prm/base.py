"""The protocols of verifier families, which judge steps or answers, and what families share."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from vllm.config import PoolerConfig

from flashedge.engine.vllm.prompts.encoder import PromptEncoder, load_tokenizer
from flashedge.errors import CheckpointError, ConfigError
from flashedge.types import Problem, TokenIds

Variant = TypeVar("Variant")
Turn = dict[str, str]
"""A message for a chat template: its role and content."""
_LETTER = "a"  # stands for the text before a continuation
THINKING_TAGS = ("<think>", "</think>")
"""A path may hold these: verifiers read a generator's thinking with its tags."""


class VerifierFormat(Protocol):
    engine_extra: Mapping[str, Any]
    """Fields of vLLM's AsyncEngineArgs that load this family."""

    def read_score(self, row: torch.Tensor) -> float:
        """Convert the model's output row at the scored token to a score in [0, 1]."""


@runtime_checkable
class PrmFormat(VerifierFormat, Protocol):
    """How one process reward model expects a path to be written.

    Each step is tokenized once and the ids are joined, so that a longer path shares the KV of a
    shorter one. Tokenizing the whole text could give other ids.
    """

    def encode_problem(self, problem: Problem) -> TokenIds:
        """Encode what stands before the first step."""

    def encode_step(self, text: str, index: int) -> tuple[TokenIds, int]:
        """Encode step `index`, which counts from 0. Returns the ids, and how many of them there are
        up to and including the scored token."""


@runtime_checkable
class AnswerFormat(VerifierFormat, Protocol):
    """How one outcome reward model expects a problem and an answer to be written.

    An answer is scored once, so the whole text is tokenized, as the model's authors do. Answers to
    one problem still share its KV.
    """

    def encode_answer(self, problem: Problem, answer: str) -> tuple[TokenIds, int]:
        """Encode both. Returns the ids, and how many of them there are up to and including the
        scored token."""


FormatBuilder = Callable[[Path, Mapping[str, Any]], PrmFormat | AnswerFormat]
"""Builds a format from a checkpoint folder and the options of its models.toml entry."""


class PrmTokenizer(PromptEncoder):
    """A verifier's own tokenizer. Raises CheckpointError when it can't be loaded.

    In the texts that it encodes, only what `spell` and `render_turns` gave can be a control token.
    """

    def __init__(self, path: Path, own: Iterable[str] = (), *, needs_template: bool = True) -> None:
        """own: see `PromptEncoder`. needs_template: see `load_tokenizer`."""
        hf = load_tokenizer(path, needs_template=needs_template)
        super().__init__(hf, own=own, words=THINKING_TAGS)
        self._path = path
        self._letter = self.encode(_LETTER)

    def spell(self, text: str) -> str:
        """Spell a text of ours so that its control tokens are encoded as such."""
        return self.spelling.spell(text)

    def encode_beginning(self, text: str) -> TokenIds:
        """Encode the beginning of a prompt: with BOS if the tokenizer adds one, without EOS."""
        ids = self.encode(text, add_special_tokens=True)
        return ids[:-1] if ids and ids[-1] == self.hf.eos_token_id else ids

    def encode_continuation(self, text: str) -> TokenIds:
        """Encode text that follows other text, without the space that SentencePiece would add.

        The text must begin with white space. Raises CheckpointError if the tokenizer merges that
        with a letter before it.
        """
        ids = self.encode(_LETTER + text)
        if ids[: len(self._letter)] != self._letter:
            raise CheckpointError(
                f"{self._path}: the tokenizer merges white space with the word before it",
                hint="text for this verifier can't be encoded step by step",
            )
        return ids[len(self._letter) :]

    def render_turns(self, turns: Sequence[Turn], reply: str | None = None) -> str:
        """Render a conversation by the checkpoint's own template.

        reply: the beginning of an assistant's turn after `turns`, or None for no such turn. A
        template that knows of thinking is told to leave the thinking out of that turn.
        """
        opening = {} if reply is None else {"add_generation_prompt": True, "enable_thinking": False}
        return self.render_chat(turns, refuses=False, **opening) + (reply or "")

    def encode_rendered(self, text: str) -> TokenIds:
        """Encode a text of `render_turns`. A BOS that template and tokenizer both write counts
        once; an end token of the template stays, since a reward model may be read there."""
        if self.hf.bos_token is not None:
            text = text.removeprefix(self.spell(self.hf.bos_token))
        return self.encode(text, add_special_tokens=True)

    def require_single_id(self, ids: TokenIds, token: str) -> int:
        """Return the id of a token. Raises CheckpointError unless `ids` is one known id."""
        # Qwen's tokenizers also use <|endoftext|> as their unknown token.
        unknown = self.hf.unk_token_id if token != self.hf.unk_token else None
        if len(ids) != 1 or ids[0] == unknown:
            raise CheckpointError(
                f"{self._path}: {token!r} is not one token of the verifier's vocabulary",
                hint="the checkpoint is of another family, or its tokenizer is another model's",
            )
        return ids[0]


def choose_variant(
    variants: Mapping[str, Variant], options: Mapping[str, Any], usual: str, family: str
) -> Variant:
    """Find the published form that `options` name. Raises ConfigError for an unknown one."""
    name = options.get("variant", usual)
    if name not in variants:
        known = ", ".join(variants)
        raise ConfigError(f"unknown variant {name!r} of family {family}", hint=f"known: {known}")
    return variants[name]


def list_turns(problem: Problem, system: str | None) -> list[Turn]:
    """List the turns of a conversation. system: for a problem without a system prompt."""
    turns = [{"role": m.role, "content": m.content} for m in problem.messages]
    if system and turns[0]["role"] != "system":
        turns.insert(0, {"role": "system", "content": system})
    return turns


def render_plain_text(problem: Problem) -> str:
    """Write a conversation for a PRM that knows no roles. System messages are left out: they
    instruct the generator."""
    messages = (m.content.strip() for m in problem.messages if m.role != "system")
    return "\n".join(text for text in messages if text)


def build_engine_extra(*, use_activation: bool | None = False, **more: Any) -> Mapping[str, Any]:
    """Build AsyncEngineArgs of a pooler that returns the head's output at every token, and `more`.

    Usually the output is a logit, and the scorer applies `sigmoid` below. Torch's own rounds
    differently in its vectorized and its scalar part, so one bit of a score would depend on how
    many tokens follow. use_activation: whether the model applies its activation; None leaves that
    to its config.
    """
    pooler = PoolerConfig(
        task="token_classify", tok_pooling_type="ALL", use_activation=use_activation
    )
    return {"runner": "pooling", "pooler_config": pooler, **more}


def sigmoid(logit: float) -> float:
    """The logistic function in double precision, so that the result depends on the logit alone."""
    small = math.exp(-abs(logit))
    return (1.0 if logit >= 0 else small) / (1.0 + small)


class LogitScore:
    """Reads the score of a format whose model outputs one logit."""

    def read_score(self, row: torch.Tensor) -> float:
        return sigmoid(float(row[0]))
