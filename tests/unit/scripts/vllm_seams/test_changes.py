"""A vLLM that is not the checked one: what moved is named.

The other vLLM is a copy of the installed one with one edit.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from scripts.vllm_seams.changes import SeamChange, find_changes
from scripts.vllm_seams.record import load_record
from scripts.vllm_seams.source import VllmSource
from tests.support.vllm_copy import copy_vllm, edit

SCHEDULER = "vllm/v1/core/sched/scheduler.py"
ENQUEUE = "def _enqueue_waiting_request(self, request: Request) -> None:"
BODY = "            self.kv_holding_waiting.add_request(request)\n        else:"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A folder with the other vLLM."""
    return copy_vllm(tmp_path)


def list_changes(other: Path) -> list[SeamChange]:
    return find_changes(VllmSource(other), load_record())


def test_the_copy_itself_is_unchanged(other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes no syntax tree: the files have the bytes that were recorded."""

    def fail(*args: object) -> None:
        raise AssertionError("a file was parsed")

    monkeypatch.setattr(ast, "parse", fail)
    assert list_changes(other) == []


BREAKING = [
    (SCHEDULER, ENQUEUE, ENQUEUE.replace("_enqueue_waiting", "_queue_waiting"),
     ":Scheduler._enqueue_waiting_request is gone (it was (self, request))",
     "FlashEdge calls it (inside/speculation.py)"),
    (SCHEDULER, ENQUEUE, ENQUEUE.replace("request: Request", "request: Request, front=False"),
     ":Scheduler._enqueue_waiting_request was (self, request) and is (self, request, front=False)",
     "FlashEdge calls it (inside/speculation.py)"),
    (SCHEDULER, "self.kv_holding_waiting = create", "self.holding_kv = create",
     ":Scheduler.kv_holding_waiting is gone", "reads, sets or passes it"),
    ("vllm/v1/sample/logits_processor/interface.py",
     "tuple[int, SamplingParams, list[int] | None, list[int]]",
     "tuple[int, SamplingParams, list[int]]",
     ":AddedRequest was tuple[int, SamplingParams, list[int] | None, list[int]] and is tuple[int",
     "relies on the order or value of it (inside/noise.py)"),
    ("vllm/envs.py", "    VLLM_USE_V2_MODEL_RUNNER: bool | None = None\n", "",
     "vllm.envs:VLLM_USE_V2_MODEL_RUNNER is gone", "reads, sets or passes it (compat.py)"),
    ("vllm/v1/worker/gpu_model_runner.py", "    allocate_kv_cache,\n", "",
     "vllm.v1.worker.gpu_model_runner:allocate_kv_cache is gone",
     "replaces it (inside/kv/tensor.py)"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "old", "new", "what", "use"), BREAKING)
def test_a_name_that_is_gone_or_has_another_signature_is_named(
    other: Path, path: str, old: str, new: str, what: str, use: str
) -> None:
    edit(other, path, old, new)
    breaking = [change for change in list_changes(other) if change.is_breaking]
    (text,) = map(str, breaking)
    assert what in text
    assert use in text


def test_only_the_body_changed(other: Path) -> None:
    edit(other, SCHEDULER, BODY, BODY.replace("add_request", "prepend_request"))
    changes = list_changes(other)
    assert not any(change.is_breaking for change in changes)
    first, second = map(str, changes)
    assert "Scheduler changed inside. FlashEdge inherits from it" in first
    assert "Scheduler._enqueue_waiting_request changed inside" in second


def test_a_new_method_of_a_subclassed_class_changes_it(other: Path) -> None:
    edit(other, SCHEDULER, f"    {ENQUEUE}", f"    def _drop(self): ...\n\n    {ENQUEUE}")
    (change,) = list_changes(other)
    assert "Scheduler changed inside" in str(change)
    assert not change.is_breaking


def test_comments_and_formatting_are_no_change(other: Path) -> None:
    edit(other, SCHEDULER, ENQUEUE, f'{ENQUEUE}\n        """Queue it."""  # now\n')
    assert list_changes(other) == []


def test_a_file_that_is_gone_takes_its_names_along(other: Path) -> None:
    (other / "vllm/v1/core/block_pool.py").unlink()
    gone = {change.name for change in list_changes(other)}
    assert "vllm.v1.core.block_pool:BlockPool.touch" in gone
