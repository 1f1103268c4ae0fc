"""One vLLM process with its front end in the daemon, from its start to its end.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import os
from collections.abc import Awaitable, Callable, Sequence
from multiprocessing import sharedctypes
from typing import TYPE_CHECKING, Any

from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.inside.keys import STAGES_PIPE, STEP_RECORD
from flashedge.engine.vllm.inside.patches import ProcessKind, apply_patches
from flashedge.engine.vllm.inside.step_record import RECORD_BYTES, StepRecord, find_root
from flashedge.engine.vllm.process.start import ProcessSetup, receive_stages, set_up, show_cards
from flashedge.errors import EngineError

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.core_client import AsyncMPClient

PERIOD_S = 5.0
"""Most seconds between two questions to the process. Chosen by hand: a tenth would wake the daemon
too often; ten times as many could overrun a long `hang_s` by 50 s."""
PERIODS = 8
"""Least number of periods in `EngineOptions.hang_s`, so that one late answer is no hang."""
MOST_STEP_S = 1800.0
"""A process that works on one step for longer counts as hung, however many tokens the step has.
Chosen by hand: a full step of 1.5B parameters on two CPU cores may take 1,500 s by
`slowest_token_s`; ten times as many would let a hung engine block its users for five hours."""


async def watch_heart(
    beat: Callable[[], Awaitable[object]], record: StepRecord, options: EngineOptions
) -> float:
    """Wait until the process counts as hung: it has given no sign of life for `hang_s`, nor for the
    time that its present step may take. Returns the seconds without a sign.

    beat: asks the process for a sign. It fails if the process ends, which is noticed elsewhere.
    record: where the process writes its steps. A pause of the daemon counts as two periods at most.
    """
    hang_s = options.hang_s
    period_s = min(PERIOD_S, hang_s / PERIODS)
    clock = asyncio.get_running_loop().time
    answer: asyncio.Future[object] | None = None
    seen, silent_s = record.progress, 0.0
    try:
        limit_s = hang_s
        while silent_s < limit_s:
            limit_s = max(hang_s, min(record.tokens * options.slowest_token_s, MOST_STEP_S))
            if answer is None:
                answer = asyncio.ensure_future(beat())
            began = clock()
            await asyncio.sleep(period_s)
            silent_s += min(clock() - began, 2 * period_s)
            if answer.done():
                if not answer.cancelled() and answer.exception() is None:
                    silent_s = 0.0
                answer = None
            if record.progress != seen:
                seen, silent_s = record.progress, 0.0
    finally:
        if answer is not None:
            answer.cancel()
    return silent_s


GARBAGE_AFTER = 10_000
"""New objects after which Python looks for garbage among them, for 2 ms. With its own 700 it did so
50 times in a level of 256 paths, a tenth of the daemon's time, and nearly all objects stay. Chosen
by hand: ten times as many would stop the daemon for some 20 ms."""
Packed = tuple[bytes, bytes | None, bytes | None]
"""A request for `inside.calls.add_requests`: without its sampling parameters, these without their
`extra_args`, which most requests of a level share, and their `extra_args`."""
Fail = Callable[[Sequence[str], Exception], None]
"""Ends the requests of these names with an error."""


class Outbox:
    """Sends the requests of one turn of the event loop to an engine in one message.

    The paths of a level are requested in one turn. If they were sent one by one, the first would
    start a step of its own, for which all others would have to wait.
    """

    def __init__(self, client: AsyncMPClient, fail: Fail) -> None:
        """Replace the client's methods by which the front end sends requests and aborts."""
        from vllm.v1.serial_utils import MsgpackEncoder

        self._client, self._fail = client, fail
        self._encoder = MsgpackEncoder()
        self._add_one, self._abort = client.add_request_async, client.abort_requests_async
        client.add_request_async, client.abort_requests_async = self.add, self.abort
        self._waiting: dict[str, Packed] = {}
        """Requests by their names."""
        self._sending: set[asyncio.Task[None]] = set()

    async def add(self, request: EngineCoreRequest) -> None:
        """Stand for the client's `add_request_async`. Raises as that does."""
        params = request.sampling_params
        guided = params is not None and params.structured_outputs
        if guided or request.mm_features or request.resumable or request.prompt_embeds is not None:
            await self._add_one(request)  # the engine prepares these in a thread of its own
            return
        self._client.ensure_alive()
        request.client_index = self._client.client_index
        self._waiting[request.request_id] = self._pack(request)
        if len(self._waiting) == 1:
            task = asyncio.create_task(self._send(), name="outbox")
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    def _pack(self, request: EngineCoreRequest) -> Packed:
        params = request.sampling_params
        if params is None:
            return self._encode(request), None, None
        rest, request = copy.copy(params), copy.copy(request)
        rest.extra_args = request.sampling_params = None
        return self._encode(request), self._encode(rest), self._encode(params.extra_args)

    def _encode(self, value: object) -> bytes:
        return bytes(*self._encoder.encode(value))

    async def abort(self, request_ids: list[str]) -> None:
        """Stand for the client's `abort_requests_async`."""
        await self._abort([name for name in request_ids if not self._waiting.pop(name, None)])

    def close(self) -> None:
        """Stop sending, because the engine has ended."""
        for task in self._sending:
            task.cancel()

    async def _send(self) -> None:
        """Send what waits. An await before the call would let an abort overtake its request."""
        requests = dict(self._waiting)
        self._waiting.clear()
        if not requests:
            return
        try:
            packed = list(requests.values())
            await self._client.call_utility_async("flashedge_call", "add_requests", [packed])
        except Exception as error:  # whatever it is, those who wait for answers have to know
            self._fail(list(requests), error)


STOP_S = 1.0
"""Seconds that an engine gets to end by itself. It has nothing to save."""
KILL_AGAIN_S = 0.2
"""Seconds between two attempts to kill the process of a start, which may not exist yet. Chosen by
hand: a tenth would look for processes all the time, and 2 s would hold up `flashedge down`."""
FAULT_CHARS = 200
"""Most characters of vLLM's error that users see: about two lines, since the log has the rest."""


class ProcessEnded(Exception):
    """The process ended during a call to it."""


class LiveProcess:
    """An AsyncLLM, its process and the process's step record."""

    def __init__(self, options: EngineOptions, on_end: Callable[[], None]) -> None:
        """on_end: called on the event loop when the process ended or hung, not for `shut_down`."""
        self._options = options
        self._on_end = on_end
        self._memory = sharedctypes.RawArray("B", RECORD_BYTES)
        self.record = StepRecord(self._memory)
        self.llm: AsyncLLM | None = None
        self._building: asyncio.Future[None] | None = None
        """The thread that builds `llm`. It can't be cancelled, only made to fail."""
        self._starting: Any = None
        """The process object that this thread is starting."""
        self._is_unwanted = False
        self._ended: asyncio.Future[None] | None = None
        self._watches = contextlib.ExitStack()
        """Stops the watches of the process's end and heartbeat, and its outbox."""
        self._hung_s: float | None = None
        """For how long the process had given no sign of life when it was killed as hung."""

    @property
    def pid(self) -> int | None:
        return None if self.llm is None else int(self._process.pid)

    @property
    def _process(self) -> Any:
        assert self.llm is not None, "it was started"
        return self.llm.engine_core.resources.engine_manager.processes[0]

    async def start(self, on_stage: Callable[[str], None]) -> dict[str, Any]:
        """Start the process and load the model. Returns the answer of `inside.kv.quota.begin`.

        on_stage: called with what the process is doing. Raises EngineError if the process ends, and
        what vLLM raises.
        """
        with receive_stages(on_stage) as pipe:
            setup = ProcessSetup(
                cards=self._options.visible_cards,
                attributes={STEP_RECORD: self._memory, STAGES_PIPE: pipe},
                receive=self._receive,
            )
            with set_up(setup):
                self._building = asyncio.ensure_future(asyncio.to_thread(self._build))
            await asyncio.shield(self._building)
            self._watch_end()
            try:
                view: dict[str, Any] = await self.call("begin")
            except ProcessEnded:
                why = self.describe_end()
                raise EngineError(f"it ended while it started: {why}") from None
        # Looking for garbage in all that vLLM has imported would stop the daemon for half a second.
        gc.freeze()
        gc.set_threshold(GARBAGE_AFTER)
        return view

    def _watch_end(self) -> None:
        assert self.llm is not None, "it was built"
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        outbox = Outbox(self.llm.engine_core, self._fail)
        sentinel = os.dup(self._process.sentinel)  # readable when the process ends
        loop.add_reader(sentinel, self._on_end)
        heart = asyncio.create_task(self._watch_heart(), name="engine-heart")
        self._watches.callback(outbox.close)
        self._watches.callback(os.close, sentinel)
        self._watches.callback(loop.remove_reader, sentinel)
        self._watches.callback(lambda: heart is asyncio.current_task() or heart.cancel())

    def _build(self) -> None:
        """Start the process and set `llm`.

        It is not returned, because the thread pool would keep a result alive until the interpreter
        ends, where the destructor of an AsyncLLM fails with a traceback.
        """
        apply_patches(ProcessKind.DAEMON)
        from vllm.v1.engine.async_llm import AsyncLLM

        with show_cards():
            config = self._options.build_args().create_engine_config()
        # vLLM switches this off on a CPU, although it works there.
        config.scheduler_config.async_scheduling = self._options.async_scheduling
        self.llm = AsyncLLM.from_vllm_config(
            config, disable_log_stats=True, enable_log_requests=False
        )
        # vLLM would refuse parameters that its drafts allow for in the first model runner alone.
        self.llm.input_processor.speculative_config = None

    def _receive(self, process: Any) -> None:
        self._starting = process
        if self._is_unwanted:
            raise EngineError("its start was given up")

    async def _give_up_start(self) -> bool:
        """End a start that is under way, with its process. Returns False if there is none."""
        if self._building is None or self._building.done():
            return False
        self._is_unwanted = True
        while not self._building.done():
            if self._starting is not None and self._starting.pid is not None:
                _kill_tree(self._starting.pid)
            await asyncio.wait({self._building}, timeout=KILL_AGAIN_S)
        self._building.exception()  # marks the error as retrieved, since nobody else asks for it
        return True

    async def _watch_heart(self) -> None:
        """Kill the process once it hangs, without awaiting its end, which a driver may prevent."""
        self._hung_s = await watch_heart(lambda: self.call("beat"), self.record, self._options)
        if self.pid is not None:
            _kill_tree(self.pid)
        self._on_end()

    def note_end(self) -> None:
        """Stop watching the process, which has ended, and end the calls to it."""
        self._watches.close()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def fail_requests(self) -> None:
        """End the open requests at once with vLLM's EngineDeadError."""
        from vllm.v1.engine.exceptions import EngineDeadError

        if self.llm is not None:
            self.llm.output_processor.propagate_error(EngineDeadError())

    def _fail(self, names: Sequence[str], error: Exception) -> None:
        if self.llm is None:
            return
        for name in names:
            state = self.llm.output_processor.request_states.get(name)
            if state is not None and state.queue is not None:
                state.queue.put(error)

    def describe_end(self, error: BaseException | None = None) -> str:
        """Say why the process ended. error: what the daemon's side raised."""
        if self._hung_s is not None:
            return f"hung: no sign of life for {self._hung_s:.0f} s"
        if (fault := self.record.fault) is not None:
            fault = fault if len(fault) <= FAULT_CHARS else f"{fault[:FAULT_CHARS]}…"
            return f"ran out of memory ({fault})" if self.record.is_memory_short else fault
        if error is not None:
            root = find_root(error)
            return str(root).strip().splitlines()[0] if str(root).strip() else type(root).__name__
        code = None if self.llm is None else self._process.exitcode
        return f"the engine process ended (exit code {code})"

    async def shut_down(self) -> None:
        """End the process, or clear away what is left of it."""
        import psutil

        was_starting = await self._give_up_start()
        # The client of a dead process may fail in any way. A live process may end meanwhile.
        is_dead = was_starting or (self._ended is not None and self._ended.done())
        expected = Exception if is_dead else psutil.NoSuchProcess
        self.note_end()
        if self.llm is not None:
            if self.llm.output_handler is not None:
                self.llm.output_handler.cancel()  # else it logs the end as the engine's death
            try:
                await asyncio.to_thread(self.llm.shutdown, STOP_S)
            except expected:
                # vLLM has stopped before it closed its sockets, and the garbage collector would
                # wait for them without end.
                client: Any = self.llm.engine_core
                with contextlib.suppress(expected):
                    await asyncio.to_thread(client.resources)
            self.llm = None
            gc.unfreeze()
            gc.collect()  # so that the destructor runs now: see `_build`

    async def call(self, method: str, *args: Any) -> Any:
        """Call a function of `inside.calls`. Raises what the function raises, as vLLM passes it on,
        and ProcessEnded if the process ends first: vLLM alone would wait without end."""
        assert self.llm is not None, "it was started"
        assert self._ended is not None, "it was started"
        call: Awaitable[Any] = self.llm.engine_core.call_utility_async(
            "flashedge_call", method, args
        )
        answer = asyncio.ensure_future(call)
        try:
            await asyncio.wait({answer, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise ProcessEnded
            return answer.result()
        finally:
            answer.cancel()


def _kill_tree(pid: int) -> None:
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in (*process.children(recursive=True), process):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
