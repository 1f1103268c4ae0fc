"""Loads pairs when requests ask for them, and unloads the least recently used.

A request uses a pair for as long as it is open, and a run for as long as it is queued or runs. A
pair in use is never unloaded. Where all places are taken, the request waits until an unused pair or
else the least recently used one is unloaded. So that no request starves, new requests for the pair
that leaves wait for their turn as well. All that wait for one pair begin together.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from flashedge import errors
from flashedge.engine.http_requests import PlainRequests
from flashedge.runtime.served_pair import LOADING, UNLOADED, ServedPair, ServiceHealth

log = logging.getLogger(__name__)

OpenPair = Callable[[str], ServedPair]
"""Builds the pair of this name, in up to a second. Raises as `build.open_pair`."""


@dataclass(slots=True)
class _Wait:
    count: int = 0
    """Requests that wait for the pair."""
    loaded: asyncio.Future[ServedPair] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class PairLoader:
    def __init__(
        self, open_pair: OpenPair, plain: PlainRequests, most: int, first: ServedPair | None = None
    ) -> None:
        """most: the most pairs that are loaded at once. first: the pair that `start` loads."""
        self._open = open_pair
        self._plain = plain
        self._most = most
        self._loaded: dict[str, ServedPair] = {} if first is None else {first.name: first}
        """The least recently used one first."""
        self._uses: Counter[str] = Counter()
        self._waits: dict[str, _Wait] = {}
        """In the order in which the pairs were asked for."""
        self.failure: str | None = None
        """Why the last load failed. None if it did not."""
        self._starting: ServedPair | None = None
        self._leaving: str | None = None
        self._was_released = asyncio.Event()
        self._work: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load the first pair. Raises EngineError; the pair stays, so that its health says why."""
        for pair in list(self._loaded.values()):
            await pair.start(self._plain)

    async def stop(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait({self._work})
        for wait in self._waits.values():
            if not wait.loaded.done():
                wait.loaded.set_exception(errors.DaemonStopping.for_request())
        while self._loaded:
            await self._loaded.popitem()[1].stop()

    @property
    def shown(self) -> ServedPair | None:
        """The pair that is being loaded, else the most recently used one."""
        return self._starting or next(reversed(self._loaded.values()), None)

    def list_pairs(self) -> tuple[ServedPair, ...]:
        """The loaded pairs, the most recently used one last, then the one that is being loaded."""
        return (*self._loaded.values(), *filter(None, [self._starting]))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._loaded)

    def health(self) -> ServiceHealth:
        if self.shown is not None:
            return self.shown.health()
        if self.is_used:
            return LOADING
        return UNLOADED if self.failure is None else replace(UNLOADED, detail=self.failure)

    @property
    def is_used(self) -> bool:
        """Whether a request or a run uses a pair, or waits for one."""
        return bool(self._waits) or any(self._uses.values())

    def get(self, name: str) -> ServedPair:
        """Return a loaded pair that the caller uses. Raises EngineDead."""
        pair = self._loaded.get(name)
        if pair is None:
            raise errors.EngineDead(f"the pair {name!r} is not loaded", hint="ask again")
        pair.check_serves()
        return pair

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[ServedPair]:
        """Load a pair if needed, and keep it for the block. Raises as `OpenPair`, EngineError where
        it does not start, EngineDead where it can't serve now."""
        await self._acquire(name)
        try:
            yield self.get(name)
        finally:
            self.release(name)

    async def rank_programs(self, name: str, keys: Sequence[str]) -> None:
        """Send the order of programs to the pair's engines, if it is loaded."""
        pair = self._loaded.get(name)
        if pair is not None:
            await pair.rank_programs(keys)

    def hold(self, name: str) -> None:
        """Keep a pair loaded until `release`. The caller must be using it already."""
        self._uses[name] += 1

    def release(self, name: str) -> None:
        self._uses[name] -= 1
        self._was_released.set()

    async def _acquire(self, name: str) -> None:
        if name in self._loaded and name != self._leaving:
            self._loaded[name] = self._loaded.pop(name)
            self._uses[name] += 1
            return
        wait = self._waits.setdefault(name, _Wait())
        wait.count += 1
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._load_waited(), name="load-pairs")
        try:
            await asyncio.shield(wait.loaded)
        except asyncio.CancelledError:
            if wait.loaded.done() and not wait.loaded.cancelled() and not wait.loaded.exception():
                self.release(name)  # it was loaded for this request too
            wait.count -= 1
            raise

    async def _load_waited(self) -> None:
        while self._waits:
            name, wait = next(iter(self._waits.items()))
            try:
                pair = self._loaded.get(name) or await self._load(name)
            except Exception as error:
                self._fail(name, wait, error)
            else:
                self.failure = None
                self._uses[name] += wait.count
                wait.loaded.set_result(pair)
            del self._waits[name]

    def _fail(self, name: str, wait: _Wait, error: Exception) -> None:
        if not isinstance(error, errors.FlashEdgeError):
            log.error("a bug in FlashEdge", exc_info=error)
            error = errors.FlashEdgeError(f"a bug in FlashEdge: {type(error).__name__}: {error}")
        log.error("the pair %s can't be loaded: %s", name, error.line)
        self.failure = f"the pair {name} can't be loaded: {error.line}"
        wait.loaded.set_exception(error)
        wait.loaded.exception()  # nobody may be left to read it

    async def _load(self, name: str) -> ServedPair:
        pair = await self._open_fitting(name)
        log.info("loading the pair %s", name)
        self._starting = pair
        try:
            await pair.start(self._plain)
        except BaseException:
            await pair.stop()
            raise
        finally:
            self._starting = None
        self._loaded[name] = pair
        return pair

    async def _open_fitting(self, name: str) -> ServedPair:
        """Build a pair. While it lacks a place or does not fit together with the loaded ones,
        unload one. An unknown pair, or one with a bad or missing checkpoint, fails at once."""
        while True:
            try:
                pair = await asyncio.to_thread(self._open, name)
                if len(self._loaded) < self._most:
                    return pair
            except errors.ConfigError as error:
                if isinstance(error, errors.CheckpointError) or not self._loaded:
                    raise
            await self._unload_one()

    async def _unload_one(self) -> None:
        """Unload the least recently used of the unused pairs, or of all if none is unused."""
        unused = (name for name in self._loaded if not self._uses[name])
        self._leaving = name = next(unused, next(iter(self._loaded)))
        try:
            while self._uses[name]:
                self._was_released.clear()
                await self._was_released.wait()
            log.info("unloading the pair %s", name)
            await self._loaded.pop(name).stop()
        finally:
            self._leaving = None


class IdleClock:
    """Measures the time without a run or request, and knows when to unload the engines."""

    def __init__(self, keep_alive_s: float, is_busy: Callable[[], bool]) -> None:
        """is_busy: whether anything is open, or engines start."""
        self._usual_s = self._keep_alive_s = keep_alive_s
        self._is_busy = is_busy
        self.busy_at = time.monotonic()
        """The last time that something was seen open, or ended, by `time.monotonic`."""

    @property
    def idle_s(self) -> float:
        """Seconds since the last run or request ended. 0 while one is open."""
        now = time.monotonic()
        if self._is_busy():
            self.busy_at = now
        return now - self.busy_at

    @property
    def is_due(self) -> bool:
        """Whether the engines have been idle for longer than the last request allows."""
        return 0 <= self._keep_alive_s < self.idle_s

    def note_end(self) -> None:
        self.busy_at = time.monotonic()

    def keep_alive(self, seconds: float | None) -> None:
        """Set how long the engines stay loaded after the request that begins now. None stands for
        the setting. With a negative number they are never unloaded. The last request decides."""
        self._keep_alive_s = self._usual_s if seconds is None else seconds
