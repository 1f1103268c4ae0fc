"""What an engine's process writes about its steps, and what the daemon reads after its death."""

import logging
import multiprocessing
from multiprocessing import sharedctypes
from pathlib import Path

import pytest
import torch
import vllm

from flashedge.engine.vllm.inside import step_record
from flashedge.engine.vllm.inside.keys import STEP_RECORD
from flashedge.engine.vllm.inside.step_record import FATAL, RECORD_BYTES, StepRecord


@pytest.fixture
def record() -> StepRecord:
    return StepRecord(bytearray(RECORD_BYTES))


def test_requests_are_held_while_their_step_lasts(record: StepRecord) -> None:
    assert not record.is_in_step
    record.begin_step(["gen-1-0a1b2c3d", "gen-12-0a1b2c3d", "gen-7"], tokens=2048)
    assert (record.is_in_step, record.tokens) == (True, 2048)
    assert [record.holds(f"gen-{i}") for i in (1, 12, 7, 2, 0)] == [True, True, True, False, False]
    record.begin_step(["gen-3-0a1b2c3d"])
    assert [record.holds(f"gen-{i}") for i in (3, 1, 12)] == [True, False, False]
    record.end_step()
    assert (record.is_in_step, record.tokens, record.holds("gen-3")) == (False, 0, False)


def test_two_steps_in_flight_hold_the_requests_of_both(
    record: StepRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the names that they have now: a draft's request gets one when a step adopts it."""
    monkeypatch.setattr(step_record, "get_step_record", lambda: record)
    names: dict[str, str | None] = {"gen-1": "gen-1", "gen-2": "gen-2", "draft-0": None}
    steps = step_record.StepsInFlight(names.get)
    steps.begin(["gen-1", "draft-0"], 2)
    steps.begin(["gen-2", "draft-0"], 3)
    assert [record.holds(f"gen-{i}") for i in (1, 2, 3)] == [True, True, False]
    assert record.tokens == 5
    with steps.blame("gen-3"):
        names["draft-0"] = "gen-3"
        assert [record.holds(f"gen-{i}") for i in (1, 2, 3)] == [True, True, True]
    assert record.holds("gen-3"), "it is drawn for in both steps"
    steps.end()
    assert [record.holds(f"gen-{i}") for i in (1, 2, 3)] == [False, True, True]
    steps.end()
    assert not record.is_in_step


def test_any_request_is_held_where_nobody_knows_and_steps_are_progress(record: StepRecord) -> None:
    record.begin_step(None)
    assert (record.holds("gen-1"), record.progress) == (True, 1)
    record.begin_step(f"gen-{i}-0a1b2c3d" for i in range(RECORD_BYTES))
    assert (record.holds("prm-5"), record.progress) == (True, 2)
    for go_on, progress in ((record.end_step, 3), (record.note_progress, 4)):
        go_on()
        assert record.progress == progress


def test_the_fault_of_a_step_leaves_its_requests(record: StepRecord) -> None:
    record.begin_step(["gen-1-0a1b2c3d"], tokens=2048)
    error = ValueError("the kernel\nfailed")
    error.__cause__ = ZeroDivisionError("by zero" * 1000)
    record.note_fault(error)
    assert (record.tokens, record.is_in_step, record.holds("gen-1")) == (2048, True, True)
    record.end_step()
    assert str(record.fault).startswith("ZeroDivisionError: by zero")
    record.note_fault(ValueError("a\ud800b"))
    assert record.fault == "ValueError: a?b", "no error hides this one"


@pytest.mark.parametrize("name", ["a\0b", "a\nb"])
def test_a_strange_name_hides_no_request(record: StepRecord, name: str) -> None:
    record.begin_step([f"{name}-0a1b2c3d", "c"])
    assert record.holds(name)
    assert record.holds("c")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_short_memory_is_recognised(record: StepRecord, error: Exception, expected: bool) -> None:
    record.note_fault(error)
    assert record.is_memory_short is step_record.is_memory_short(error) is expected


@pytest.mark.parametrize("message", FATAL)
def test_vllms_last_logged_error_is_written(monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    memory, logger = sharedctypes.RawArray("B", RECORD_BYTES), logging.getLogger("vllm")
    monkeypatch.setattr(multiprocessing.current_process(), STEP_RECORD, memory, raising=False)
    monkeypatch.setattr(step_record, "_own", None)
    monkeypatch.setattr(logger, "handlers", list(logger.handlers))
    step_record.get_step_record()
    own, log = StepRecord(memory), logging.getLogger("vllm.v1.engine.core")  # the daemon's, ours
    try:
        raise torch.OutOfMemoryError("CUDA out of memory")
    except torch.OutOfMemoryError:
        log.exception("Invocation of %s method failed", "flashedge_view")
        assert own.fault is None
        log.exception(message)
    assert (own.fault, own.is_memory_short) == ("OutOfMemoryError: CUDA out of memory", True)


def test_vllm_still_logs_what_the_faults_are_read_from() -> None:
    source = (Path(vllm.__file__).parent / "v1" / "engine" / "core.py").read_text(encoding="utf-8")
    assert [f'logger.exception("{message}")' in source for message in FATAL] == [True, True]
