"""Two engines that start in two threads share what msgspec knows of their messages."""

from __future__ import annotations

import multiprocessing
import threading
import time
import typing
from pathlib import Path
from typing import Any

from flashedge.config import load_config
from flashedge.engine.vllm.pair import VllmPair
from flashedge.models.registry import find_pair

DECODERS, APART_S, SLOWER_S = 12, 0.005, 0.0005


def decode_in_threads(home: str) -> None:
    """Make decoders in one thread after the other and use each at once, in a fresh process.

    The first one takes 60 ms, so the others are made meanwhile.
    """
    from msgspec.msgpack import encode
    from vllm.v1.engine import EngineCoreOutputs, UtilityOutput
    from vllm.v1.serial_utils import MsgpackDecoder

    config = load_config(environ={"FLASHEDGE_HOME": home})
    VllmPair(find_pair("bundled", config), config)._build()  # as before the engines start
    evaluate = typing._eval_type  # type: ignore[attr-defined]

    def evaluate_slowly(*args: Any) -> Any:
        time.sleep(SLOWER_S)
        return evaluate(*args)

    typing._eval_type = evaluate_slowly  # type: ignore[attr-defined]
    message = encode(EngineCoreOutputs(utility_output=UtilityOutput(call_id=7)))
    decoded: list[int] = []

    def decode() -> None:
        decoded.append(MsgpackDecoder(EngineCoreOutputs).decode(message).utility_output.call_id)

    threads = [threading.Thread(target=decode) for _ in range(DECODERS)]
    for thread in threads:
        thread.start()
        time.sleep(APART_S)
    for thread in threads:
        thread.join()
    assert decoded == [7] * DECODERS


def test_decoders_made_at_once_in_two_threads_do_not_end_the_process(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")  # as for engines: it has imported vLLM
    process = context.Process(target=decode_in_threads, args=(str(tmp_path),))
    process.start()
    process.join(60)
    assert process.exitcode == 0
