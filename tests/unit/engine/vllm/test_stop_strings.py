"""Stop strings count behind a model's thinking, whichever way its tokens arrive."""

from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast
from vllm.sampling_params import SamplingParams

from flashedge.engine.vllm.inside.keys import ARGS_KEY, THINKS
from flashedge.engine.vllm.serving.stop_strings import build_detokenizer

WORDS = ["<think>", "</think>", "<", "thi", "Q:", "Q", ":", "so", "it", "7", "\n", " "]
WORDS += ["analysis", "assistant", "final"]
TAGS = ("<think>", "</think>")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="so"))
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made)


def build(tokenizer: Any, stop: Any, prompt: str = "", tags: Any = TAGS, **fields: Any) -> Any:
    params = SamplingParams(stop=stop, extra_args={ARGS_KEY: {THINKS: tags}}, **fields)
    ids = [WORDS.index(word) for word in prompt.split("|") if word]
    request = {"request_id": "r", "sampling_params": params, "prompt_token_ids": ids}
    return build_detokenizer(tokenizer, SimpleNamespace(**request, prompt_embeds=None))


def read(
    tokenizer: Any, words: list[str], stop: list[str], *, size: int = 1, **fields: Any
) -> tuple[str, str | None]:
    """The text of an answer and what stopped it. size: tokens that arrive at once."""
    detokenizer, text = build(tokenizer, stop, **fields), ""
    for start in range(0, len(words), size):
        ids = [WORDS.index(word) for word in words[start : start + size]]
        found = detokenizer.update(ids, False)
        is_last = found is not None or start + size >= len(words)
        text += detokenizer.get_next_output_text(is_last, delta=True)
        if found is not None:
            return text, found
    return text, None


THOUGHT = ["<think>", "so", "Q:", "\n", "</think>"]
CASES: list[tuple[str, list[str], str, str | None]] = [
    ("", [*THOUGHT, "it", "7"], "<think>soQ:\n</think>it7", None),
    ("", [*THOUGHT, "it", "Q:", "7"], "<think>soQ:\n</think>it", "Q:"),
    ("", [*THOUGHT, "it", "Q", ":", "7"], "<think>soQ:\n</think>it", "Q:"),
    ("", [*THOUGHT, "Q:"], "<think>soQ:\n</think>", "Q:"),
    ("", ["\n", *THOUGHT, "Q:"], "\n<think>soQ:\n</think>", "Q:"),
    ("", ["<think>", "so", "Q:"], "<think>soQ:", None),
    ("", ["it", "Q:", "7"], "it", "Q:"),
    ("", ["<", "thi", "Q:", "7"], "<thi", "Q:"),
    ("so|<think>", ["so", "Q:", "</think>", "it", "Q:"], "soQ:</think>it", "Q:"),
    ("so|<think>|\n", ["so", "Q:", "</think>", "it"], "soQ:</think>it", None),
    ("<think>|\n|</think>", ["it", "Q:", "7"], "it", "Q:"),
]
"""A prompt, an answer, what is left of it, and what stopped it."""


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(("prompt", "words", "text", "found"), CASES, ids=lambda v: ascii(v)[:40])
def test_stops_count_behind_the_thinking(
    tokenizer: Any, prompt: str, words: list[str], text: str, found: str | None, size: int
) -> None:
    assert read(tokenizer, words, ["Q:"], prompt=prompt, size=size) == (text, found)


def test_the_end_of_the_thinking_may_stop_an_answer_and_the_stop_may_stay(tokenizer: Any) -> None:
    """A model that does not think is stopped anywhere."""
    assert read(tokenizer, [*THOUGHT, "it"], ["Q:"], tags=None) == ("<think>so", "Q:")
    for size in (1, 100):
        found = read(tokenizer, [*THOUGHT, "it"], ["Q:", "</think>"], size=size)
        assert found == ("<think>soQ:\n", "</think>")
    words = [*THOUGHT, "it", "Q", ":", "7"]
    found = read(tokenizer, words, ["Q:"], include_stop_str_in_output=True)
    assert found == ("<think>soQ:\n</think>itQ:", "Q:")


def test_a_model_may_have_other_tags(tokenizer: Any) -> None:
    tags, words = ("analysis", "assistantfinal"), ["so", "Q:", "assistant", "final", "it", "Q:"]
    for size in (1, 100):
        found = read(tokenizer, ["analysis", *words], ["Q:"], tags=tags, size=size)
        assert found == ("analysissoQ:assistantfinalit", "Q:")
        assert read(tokenizer, ["final", *words], ["Q:"], tags=tags, size=size) == ("finalso", "Q:")


def test_text_of_the_thinking_is_not_held_back(tokenizer: Any) -> None:
    detokenizer = build(tokenizer, ["Q" * 30])
    for word in THOUGHT:
        assert detokenizer.update([WORDS.index(word)], False) is None
        assert detokenizer.get_next_output_text(False, delta=True) == word
    detokenizer.update([WORDS.index("it")], False)
    assert detokenizer.get_next_output_text(False, delta=True) == ""
    assert detokenizer.get_next_output_text(True, delta=True) == "it"
