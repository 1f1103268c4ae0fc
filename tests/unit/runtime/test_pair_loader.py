"""Pairs that are loaded on demand: who waits for whom, what is unloaded first, and what fails."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from flashedge.engine.http_requests import PlainRequests
from flashedge.errors import (
    CheckpointError,
    ConfigError,
    DaemonStopping,
    EngineDead,
    EngineError,
    NotFound,
)
from flashedge.runtime.pair_loader import PairLoader


class FakePair:
    def __init__(self, name: str, log: list[str], error: Exception | None) -> None:
        self.name, self._log, self._error = name, log, error

    async def start(self, plain: object) -> None:
        await asyncio.sleep(1.0)
        if self._error is not None:
            raise self._error
        self._log.append(f"+{self.name}")

    async def stop(self) -> None:
        self._log.append(f"-{self.name}")

    def check_serves(self) -> None:
        if self.name == "broken":
            raise EngineDead("it is broken")


class Rig:
    """`log` has what was loaded (+) and unloaded (-), and which user began (its name)."""

    def __init__(self, most: int = 1) -> None:
        self.log: list[str] = []
        self.opens: Callable[[str], Exception | None] = lambda name: None
        self.starts: Callable[[str], Exception | None] = lambda name: None
        self.loader = PairLoader(self._open, PlainRequests(), most)

    def _open(self, name: str) -> Any:
        if (error := self.opens(name)) is not None:
            raise error
        return FakePair(name, self.log, self.starts(name))

    async def use(self, pair: str, user: str, seconds: float) -> None:
        async with self.loader.use(pair):
            self.log.append(user)
            await asyncio.sleep(seconds)

    def begin(self, pair: str, user: str, seconds: float = 5.0) -> asyncio.Task[None]:
        return asyncio.create_task(self.use(pair, user, seconds))


async def settle() -> None:
    """Let what can happen at once happen. Opening a pair uses a thread."""
    await asyncio.sleep(0.1)


async def test_a_pair_is_loaded_once_for_all_who_ask_for_it() -> None:
    rig = Rig()
    assert rig.loader.shown is None
    await asyncio.gather(rig.begin("a", "1"), rig.begin("a", "2"))
    await rig.use("a", "3", 0)
    assert rig.log == ["+a", "1", "2", "3"]
    assert not rig.loader.is_used


async def test_another_pair_waits_until_nobody_uses_the_first() -> None:
    rig = Rig()
    first = rig.begin("a", "a1")
    await asyncio.sleep(1.5)
    second = rig.begin("b", "b1")
    while rig.loader._leaving is None:  # noqa: ASYNC110 - opening "b" takes no virtual time
        await asyncio.sleep(0)
    later = [rig.begin("a", "a2"), rig.begin("b", "b2"), rig.begin("a", "a3")]
    await asyncio.gather(first, second, *later)
    assert rig.log == ["+a", "a1", "-a", "+b", "b1", "b2", "-b", "+a", "a2", "a3"]


async def test_the_least_recently_used_pair_is_unloaded_first() -> None:
    rig = Rig(most=2)
    for pair in ("a", "b", "a"):
        await rig.use(pair, pair, 0)
    await rig.use("c", "c", 0)
    assert rig.log == ["+a", "a", "+b", "b", "a", "-b", "+c", "c"]
    assert rig.loader.names == ("a", "c")


async def test_an_unused_pair_is_unloaded_before_one_in_use() -> None:
    rig = Rig(most=2)
    async with rig.loader.use("a"):
        await rig.use("b", "b1", 0)
        await rig.use("c", "c1", 0)
    assert rig.log == ["+a", "+b", "b1", "-b", "+c", "c1"]


async def test_pairs_that_dont_fit_together_take_turns() -> None:
    rig = Rig(most=3)
    rig.opens = lambda name: ConfigError("no room") if rig.loader.names else None
    await rig.use("a", "a1", 0)
    await rig.use("b", "b1", 0)
    assert rig.log == ["+a", "a1", "-a", "+b", "b1"]


@pytest.mark.parametrize("most", [1, 3])
async def test_a_pair_whose_files_are_missing_unloads_no_other(most: int) -> None:
    rig = Rig(most)
    await rig.use("a", "a1", 0)
    rig.opens = lambda name: CheckpointError("not on this machine")
    with pytest.raises(CheckpointError):
        await rig.use("b", "b1", 0)
    assert rig.loader.names == ("a",)


async def test_what_can_not_be_loaded_fails_for_those_who_asked_and_can_be_asked_again() -> None:
    rig = Rig()
    await rig.use("a", "a1", 0)
    for error, where in ((NotFound("no pair"), "opens"), (EngineError("no start"), "starts")):
        setattr(rig, where, lambda name, error=error: error if name == "x" else None)
        both = rig.begin("x", "x1"), rig.begin("x", "x2")
        assert await asyncio.gather(*both, return_exceptions=True) == [error, error]
        setattr(rig, where, lambda name: None)
    await rig.use("x", "x3", 0)
    assert rig.log == ["+a", "a1", "-a", "-x", "+x", "x3"]
    assert not rig.loader.is_used


async def test_a_pair_that_can_not_serve_is_not_in_use_afterwards() -> None:
    rig = Rig()
    with pytest.raises(EngineDead, match="it is broken"):
        await rig.use("broken", "1", 0)
    assert not rig.loader.is_used


async def test_who_no_longer_waits_holds_nothing() -> None:
    rig = Rig()
    leaving = rig.begin("a", "a1")
    await settle()
    leaving.cancel()
    await asyncio.wait({leaving})
    await rig.use("b", "b1", 0)
    assert rig.log == ["+a", "-a", "+b", "b1"]
    assert not rig.loader.is_used


async def test_a_run_keeps_its_pair_after_its_request() -> None:
    rig = Rig()
    async with rig.loader.use("a"):
        rig.loader.hold("a")
    other = rig.begin("b", "b1", 0)
    await asyncio.sleep(30)
    assert rig.log == ["+a"]
    rig.loader.release("a")
    await other
    assert rig.log == ["+a", "-a", "+b", "b1"]


async def test_stopping_unloads_all_and_tells_those_who_wait() -> None:
    rig = Rig()
    user = rig.begin("a", "a1", 60.0)
    await asyncio.sleep(1.5)
    waiting = rig.begin("b", "b1")
    await settle()
    await rig.loader.stop()
    with pytest.raises(DaemonStopping):
        await waiting
    assert rig.log == ["+a", "a1", "-a"]
    user.cancel()
