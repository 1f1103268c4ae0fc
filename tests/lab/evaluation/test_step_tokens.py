"""Tokens of each step, by the bundled generator's tokenizer."""

from __future__ import annotations

import tokenizers

from flashedge.search.steps import split_steps
from scripts.lab.evaluation.step_tokens import step_counter
from tests.support.paths import ROOT

GENERATOR = ROOT / "flashedge" / "bundled" / "generator"
TEXT = "Let b = 40.\n\ng = b - 20 = 20.\n\nThe answer is \\boxed{20}."


def test_tokens_of_each_step() -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(GENERATOR / "tokenizer.json"))
    steps = split_steps(TEXT)
    ids = tokenizer.encode(TEXT, add_special_tokens=False).ids
    count = step_counter(GENERATOR)
    found = count(ids, len(steps))
    assert len(found) == len(steps) == 3
    assert sum(found) == len(ids)
    at = 0
    for step, length in zip(steps, found, strict=True):
        assert tokenizer.decode(ids[at : at + length]).strip() == step.strip()
        at += length
    assert count(ids, len(steps) + 1) == ()


def test_an_end_token_behind_a_blank_line_is_no_step() -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(GENERATOR / "tokenizer.json"))
    ids = tokenizer.encode(TEXT + "\n\n", add_special_tokens=False).ids
    end = tokenizer.token_to_id("<|im_end|>")
    assert sum(step_counter(GENERATOR)([*ids, end], 3)) == len(ids) + 1
