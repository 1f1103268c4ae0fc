"""A spelling of control tokens that no outside text can have.

A tokenizer turns the text `<|im_end|>` into the token that ends a turn, whoever wrote it. So
control tokens get another spelling, drawn at random when a model is loaded, and a copy of the
tokenizer knows them by that spelling only. What we and the chat template write is respelled; what a
user, a tool or a model writes is left as it is, and is text. Other texts have the ids that they
always had.
"""

import json
import re
import secrets
from collections.abc import Iterable, Iterator
from typing import Any

from tokenizers import Tokenizer

_FIRST, _COUNT = 0x100000, 0xFFFE
"""The private characters of plane 16, to which no font and no tokenizer gives a meaning."""
_MARK_LENGTH = 8
"""Private characters before each token's number: 128 bits that nobody can guess."""
_MOST_TOKENS = _COUNT - 2


class PrivateSpelling:
    def __init__(self, tokens: Iterable[str]) -> None:
        self._mark = "".join(_private(secrets.randbelow(_COUNT)) for _ in range(_MARK_LENGTH))
        self.tokens = tuple(dict.fromkeys(tokens))
        assert len(self.tokens) <= _MOST_TOKENS, "each token has a private character of its own"
        self._spelled = {token: self._number(at) for at, token in enumerate(self.tokens, 2)}
        self._plain = {spelled: token for token, spelled in self._spelled.items()}
        longest_first = sorted(self.tokens, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self.opens, self.closes = self._number(0), self._number(1)
        """Where the template begins and ends a token whose middle is a role: see `templates`."""

    def _number(self, number: int) -> str:
        return self._mark + _private(number)

    def spell(self, text: str) -> str:
        """Spell each token in a text of ours privately."""
        return self._any.sub(lambda match: self._spelled[match[0]], text)

    def split(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield the pieces of a text as everyone writes them, and whether each is a token of
        ours."""
        for piece in re.split(f"({self._mark}.)", text):
            if piece in self._plain:
                yield self._plain[piece], True
            elif piece:
                yield piece, False

    def find(self, text: str) -> str | None:
        """The first of the tokens that stands in a text as others would write it."""
        match = self._any.search(text)
        return match[0] if match else None

    def break_tokens(self, text: str) -> str:
        """Put a space into each token in a text, so that it is none."""
        return self._any.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)

    def respell(self, backend: Tokenizer) -> Tokenizer | None:
        """A copy of a tokenizer that knows the tokens by their private spelling only. None where it
        would give them other ids."""
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
    """Rename the tokens in the vocabulary, so that no merge of characters gives one of them."""
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


def _private(number: int) -> str:
    return chr(_FIRST + number)
