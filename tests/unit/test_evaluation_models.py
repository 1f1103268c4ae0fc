"""The bundled pair's own files: its weights' name, its steps' tokens."""

from __future__ import annotations

import shutil
from pathlib import Path

import tokenizers

from flashedge.evaluation.model_files import step_counter, weights_digest
from flashedge.search.steps import split_steps

GENERATOR = Path(__file__).parents[2] / "flashedge" / "bundled" / "generator"
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


def test_other_weights_have_another_name(tmp_path: Path) -> None:
    shutil.copytree(GENERATOR, tmp_path / "copy")
    assert weights_digest([tmp_path / "copy"]) == weights_digest([GENERATOR])
    weights = tmp_path / "copy" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert weights_digest([tmp_path / "copy"]) != weights_digest([GENERATOR])
