"""The chat template of a thinking model, with thinking on and off."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashedge.engine.vllm.codec import HFCodec
from flashedge.errors import CheckpointError
from flashedge.types import Message
from tests.support.tiny_checkpoints import make_checkpoint

MESSAGES = (Message(role="user", content="So 12 + 30 = 42."),)
EMPTY = "<think>\n\n</think>\n\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3_generator", tmp_path_factory.mktemp("model") / "qwen3")


def end_of_prompt(codec: HFCodec, **variables: bool) -> str:
    return codec.decode(codec.encode_chat(MESSAGES, variables)).rpartition("assistant\n")[2]


def test_the_entry_decides_and_a_request_overrides_it(folder: Path) -> None:
    thinking, silent = HFCodec(folder), HFCodec(folder, {"enable_thinking": False})
    assert end_of_prompt(thinking) == ""
    assert end_of_prompt(silent) == EMPTY
    assert end_of_prompt(thinking, enable_thinking=False) == EMPTY
    assert end_of_prompt(silent, enable_thinking=True) == ""
    assert end_of_prompt(thinking, of_another_model=True) == ""


def test_an_entry_with_a_misspelt_variable_is_refused(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="no variable 'enable_thinkng'"):
        HFCodec(folder, {"enable_thinkng": False})
