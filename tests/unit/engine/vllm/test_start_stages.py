"""What a starting engine tells the daemon of vLLM's log lines of a start on a card."""

import logging
import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import vllm
from tqdm import tqdm

from flashedge.engine.vllm.inside import start_stages
from flashedge.engine.vllm.inside.keys import STAGES_PIPE

_RUNNER, _WARMUP = "v1.worker.gpu_model_runner", "model_executor.warmup.kernel_warmup"
LINES = [
    (_RUNNER, "Starting to load model %s...", "Qwen/Qwen2.5-7B"),
    ("platforms.cuda", "Using %s attention backend", "FLASH_ATTN"),
    ("model_executor.model_loader.default_loader", "Loading weights took %.2f seconds", 4.1),
    (_RUNNER, "Model loading took %s GiB memory and %.6f seconds", "14.2", 5.0),
    ("compilation.monitor", "%sStarting torch.compile", ""),
    ("compilation.backends", "%sDynamo bytecode transform time: %.2f s", "", 6.3),
    ("compilation.backends", "%sCompiling a graph for compile range %s takes %.2f s", "", "", 21.0),
    ("compilation.monitor", "%storch.compile took %.2f s in total", "", 29.5),
    ("compilation.monitor", "%sInitial profiling/warmup run took %.2f s", "", 0.4),
    ("v1.core.kv_cache_utils", "GPU KV cache size: %s tokens", "80,000"),
    (_WARMUP, "JIT kernel warmup starting."),
    (_WARMUP, "JIT kernel warmup finished in %.2fs.", 3.0),
    (_RUNNER, "Graph capturing finished in %.0f secs, took %.2f GiB", 9, 0.6),
    ("v1.engine.core", "init engine (profile, create kv cache, warmup model) took %.2f s", 51.0),
]
EXPECTED = [
    "loading the weights",
    "running the model once",
    "compiling the model",
    "running the model once",
    "allocating KV memory",
    "compiling kernels",
    "preparing graphs",
    "testing the sampler",
    "making the scheduler",
]


@pytest.fixture(autouse=True)
def log_of_errors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """vLLM's log as an engine process has it: errors only, into stderr."""
    logger, shown = logging.getLogger("vllm"), logging.StreamHandler()
    level = logger.level
    shown.setLevel(logging.ERROR)
    monkeypatch.setattr(logger, "handlers", [shown])
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    reader, writer = multiprocessing.Pipe(duplex=False)
    os.set_blocking(writer.fileno(), False)
    monkeypatch.setattr(multiprocessing.current_process(), STAGES_PIPE, writer, raising=False)
    monkeypatch.setattr(tqdm, "display", start_stages.report_bar)
    yield reader
    start_stages.end()


def receive(pipe: Connection) -> list[str]:
    stages = []
    while pipe.poll():
        stages.append(pipe.recv_bytes().decode())
    return stages


def log_start() -> None:
    for name, message, *arguments in LINES:
        logging.getLogger(f"vllm.{name}").info(message, *arguments)


def test_bars_are_counted_not_drawn(pipe: Connection, capfd: pytest.CaptureFixture[str]) -> None:
    start_stages.begin()
    for count, desc in ((3, "Capturing CUDA graphs (decode, FULL)"), (2, "Somebody else's")):
        for _ in tqdm(range(count), desc=desc, mininterval=0):
            pass
    stages = receive(pipe)
    assert (stages[0], stages[-1]) == ("capturing graphs (0 of 3)", "capturing graphs (3 of 3)")
    assert capfd.readouterr().err.strip() == ""


def test_the_lines_of_a_start_on_a_card_become_stages_and_vllms_log_stays_as_it_is(
    pipe: Connection, capfd: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("vllm")
    before = (logger.level, list(logger.handlers))
    start_stages.begin()
    log_start()
    assert receive(pipe) == EXPECTED
    start_stages.end()
    assert capfd.readouterr().err == ""
    assert (logger.level, logger.handlers) == before
    log_start()
    assert receive(pipe) == [], "after the start nothing is sent"


def test_an_engine_never_waits_for_the_daemon(pipe: Connection) -> None:
    start_stages.begin()
    for _ in range(400):
        log_start()
    assert len(receive(pipe)) < 400 * len(EXPECTED)
    pipe.close()
    log_start()


def test_vllm_still_logs_what_the_stages_are_read_from() -> None:
    folder = Path(vllm.__file__).parent
    rooms = ("v1/engine", "v1/worker", "compilation", "model_executor")
    files = (file for room in rooms for file in (folder / room).rglob("*.py"))
    source = "\n".join(file.read_text(encoding="utf-8") for file in files)
    beginnings = [*start_stages.STAGES, *(f'desc="{bar}' for bar in start_stages.BARS)]
    assert [text for text in beginnings if text not in source] == []


def test_the_first_of_several_workers_reports_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """One without a pipe leaves the log alone."""
    handlers = list(logging.getLogger("vllm").handlers)
    start_stages.begin()
    assert logging.getLogger("vllm").handlers == handlers
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    context: Any = start_stages.get_mp_context()
    assert not hasattr(context.Process(name="VllmWorker-0"), STAGES_PIPE), "nobody listens"
    reader, writer = multiprocessing.Pipe(duplex=False)
    monkeypatch.setattr(multiprocessing.current_process(), STAGES_PIPE, writer, raising=False)
    context = start_stages.get_mp_context()
    first, second = (context.Process(name=f"VllmWorker-{rank}") for rank in range(2))
    assert getattr(first, STAGES_PIPE) is writer
    assert not hasattr(second, STAGES_PIPE)
    assert context.get_start_method() == "spawn"
    reader.close()
    writer.close()
