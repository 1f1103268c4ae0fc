"""A spelling of control tokens that no outside text can have.

A tokenizer turns the text `<|im_end|>` into the token that ends a turn, whoever wrote it. So
control tokens get another spelling, drawn at random when a model is loaded, and a copy of the
tokenizer knows them by that spelling only. What we and the chat template write is respelled. What a
user, a tool or a model writes is left as it is, so that it is encoded as text. Texts without
control tokens keep their ids.
"""

import json
import re
import secrets
from collections.abc import Iterable, Iterator
from typing import Any

from tokenizers import Tokenizer

_FIRST, _COUNT = 0x100000, 0xFFFE
"""The private characters of plane 16: the first and their number. No tokenizer has them."""
_MARK_LENGTH = 8
"""Private characters before each token's number: 128 bits that nobody can guess."""
_MOST_TOKENS = _COUNT - 2  # two characters are for `PrivateSpelling.opens` and `closes`


class PrivateSpelling:
    """Spells each control token as the mark of this object and a character of its own."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._mark = "".join(_make_private(secrets.randbelow(_COUNT)) for _ in range(_MARK_LENGTH))
        self.tokens = tuple(dict.fromkeys(tokens))
        assert len(self.tokens) <= _MOST_TOKENS, "each token has a private character of its own"
        self._spelled = {token: self._spell_number(at) for at, token in enumerate(self.tokens, 2)}
        self._plain = {spelled: token for token, spelled in self._spelled.items()}
        longest_first = sorted(self.tokens, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self.opens, self.closes = self._spell_number(0), self._spell_number(1)
        """Marks for the halves of a token whose middle is a role: see `templates`."""

    def _spell_number(self, number: int) -> str:
        return self._mark + _make_private(number)

    def spell(self, text: str) -> str:
        """Spell each token in a text of ours privately."""
        return self._any.sub(lambda match: self._spelled[match[0]], text)

    def split(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield pieces in their usual spelling, and whether each was a privately spelled token."""
        for piece in re.split(f"({self._mark}.)", text):
            if piece in self._plain:
                yield self._plain[piece], True
            elif piece:
                yield piece, False

    def find(self, text: str) -> str | None:
        """The first token that a text holds in its usual spelling. None if there is none."""
        match = self._any.search(text)
        return match[0] if match else None

    def break_tokens(self, text: str) -> str:
        """Put a space into each token of a text. A token of one character becomes a space."""
        return self._any.sub(lambda match: f"{match[0][:-1][:1]} {match[0][1:]}", text)

    def respell(self, backend: Tokenizer) -> Tokenizer | None:
        """Copy a tokenizer so that it knows the tokens by private spelling only. Returns None if
        that would change their ids."""
        data = json.loads(backend.to_str())
        for entry in data["added_tokens"]:
            entry["content"] = self._spelled.get(entry["content"], entry["content"])
        _respell_model(data["model"], self._spelled)
        copy = Tokenizer.from_str(json.dumps(data))
        copy.no_truncation()
        copy.no_padding()
        same = all(
            copy.token_to_id(spelled) == backend.token_to_id(token)
            for token, spelled in self._spelled.items()
        )
        return copy if same else None


def _respell_model(model: dict[str, Any], spelled: dict[str, str]) -> None:
    """Rename the tokens in a model's vocabulary, and drop the merges that would make one."""
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        inside = [token for token in spelled if token in vocab]
        for token in inside:
            vocab[spelled[token]] = vocab.pop(token)
        if inside and model.get("merges"):
            gone = set(inside)
            pairs = (m if isinstance(m, list) else m.split(" ") for m in model["merges"])
            model["merges"] = [p for p in pairs if gone.isdisjoint((*p, "".join(p)))]
    elif isinstance(vocab, list):
        for piece in vocab:
            piece[0] = spelled.get(piece[0], piece[0])
    if model.get("unk_token") in spelled:
        model["unk_token"] = spelled[model["unk_token"]]


def _make_private(number: int) -> str:
    return chr(_FIRST + number)
