"""Draws the next group of paths while the policy has not seen the current one.

Only searches that may exit early draw whole paths in groups. A path drawn ahead is the very request
that its node would make: when the search asks for the node, it adopts what is drawn and what is
still to come. When the search ends instead, the path was drawn for nothing.

`runtime/programs/room_ahead.py` says whether there is room. Off: `scheduling_paths_ahead = false`.
Ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Self

from flashedge.certainty.policies import Reason
from flashedge.engine.base import Chunk, ExtendRequest, Generator
from flashedge.errors import FlashEdgeError
from flashedge.runtime.drive.earlier_run import NO_EARLIER_RUN, EarlierRun
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.drive.path_request import build_path_request
from flashedge.runtime.programs.room_ahead import GroupAhead
from flashedge.runtime.request.spec import RunSpec
from flashedge.runtime.request.strategies import count_paths_at_once
from flashedge.search.base import Command, Expand, Finish, Search, SearchState
from flashedge.search.tree import ROOT
from flashedge.types import Speculation, TokenIds

Start = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
"""Starts work that ends with the run at the latest."""


class _Path:
    """One path that is drawn ahead, and the stream of what it yields."""

    def __init__(self, request: ExtendRequest, generator: Generator) -> None:
        self.request = request
        self.tokens = 0
        self.error: FlashEdgeError | None = None
        """Why it was not drawn to its end."""
        self.task: asyncio.Task[None] | None = None
        self._generator = generator
        self._chunks: asyncio.Queue[Chunk | None] = asyncio.Queue()

    async def draw(self) -> None:
        """Draw the path. An error concerns the node that has adopted it, if any."""
        try:
            async with aclosing(self._generator.extend(self.request)) as stream:
                async for chunk in stream:
                    self.tokens += len(chunk.token_ids)
                    self._chunks.put_nowait(chunk)
        except FlashEdgeError as error:
            self.error = error
        self._chunks.put_nowait(None)

    async def stream(self) -> AsyncGenerator[Chunk]:
        """What was drawn, then what is drawn. Closing it stops the path. Raises what `extend`
        raises."""
        try:
            while (chunk := await self._chunks.get()) is not None:
                yield chunk
            if self.error is not None:
                raise self.error
        finally:
            self.stop()

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()


class PathsAhead:
    """One run's paths ahead, used as a context. Does nothing where the run gets no room, and for a
    run that continues another, whose paths are known already."""

    def __init__(
        self,
        search: Search[Any],
        spec: RunSpec,
        prompt_ids: TokenIds,
        engines: Engines,
        earlier: EarlierRun,
        start: Start,
    ) -> None:
        draws = (
            engines.optimizations.paths_ahead
            and spec.early_exit is not None
            and earlier is NO_EARLIER_RUN
        )
        self._room = engines.room_ahead if draws else None
        self._search = search
        self._spec = spec
        self._prompt_ids = prompt_ids
        self._engines = engines
        self._start = start
        self._group: GroupAhead | None = None
        self._undecided: dict[int, _Path] = {}
        """Paths of the group that the search may ask for, by seed."""
        self._asked: dict[int, _Path] = {}
        """Paths that the search has asked for, until their nodes adopt them."""
        self._is_undecided = False
        self._usage = Speculation()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """The run is over, however it ended."""
        self.drop()
        self._stop(self._asked)

    def follow(self, state: SearchState, commands: Sequence[Command]) -> None:
        """Note what the search decided, and draw the group behind the one that it begins. Call it
        once the commands' own work has started."""
        if self._room is None:
            return
        for command in commands:
            match command:
                case Expand(parent=parent, children=children) if parent == ROOT:
                    self._note_decision(went_on=True)
                    for child in children:
                        if (path := self._undecided.pop(child.seed, None)) is not None:
                            self._asked[child.seed] = path
                    self.drop()
                    self._draw_next(state, command)
                case Finish(cut_by=cut_by):
                    if cut_by in frozenset(Reason):
                        self._note_decision(went_on=False)
                    self.drop()
                case _:
                    pass

    def adopt(self, request: ExtendRequest) -> AsyncGenerator[Chunk] | None:
        """The stream of a path that is drawn ahead, if this request is its own."""
        path = self._asked.get(request.seed)
        if path is None or path.error is not None:
            return None
        if path.request != replace(request, continuation=None):
            return None
        return self._pass_on(self._asked.pop(request.seed))

    def drop(self) -> None:
        """Stop what the search has not asked for."""
        self._stop(self._undecided)
        if self._room is not None and self._group is not None:
            self._room.release(self._group)
        self._group = None

    @property
    def usage(self) -> Speculation:
        """What was drawn ahead and used. Complete once the run is over."""
        return self._usage

    async def _pass_on(self, path: _Path) -> AsyncGenerator[Chunk]:
        """A path counts as kept once it is whole."""
        drawn = path.tokens
        self._usage += Speculation(drawn_tokens=drawn)
        async with aclosing(path.stream()) as stream:
            async for chunk in stream:
                yield chunk
        self._usage += Speculation(kept_tokens=drawn, kept_steps=int(drawn > 0))

    def _stop(self, paths: dict[int, _Path]) -> None:
        for path in paths.values():
            self._usage += Speculation(drawn_tokens=path.tokens)
            path.stop()
        paths.clear()

    def _note_decision(self, *, went_on: bool) -> None:
        """The policy has decided, if it was asked about a further group."""
        if self._room is not None and self._is_undecided:
            self._room.continuations.note(went_on)
        self._is_undecided = False

    def _draw_next(self, state: SearchState, current: Expand) -> None:
        ahead = self._search.lookahead(state, ROOT)
        seeds = ahead.seeds[len(state.tree.children(ROOT)) :]
        if self._room is None or not seeds:
            return
        self._is_undecided = True
        group = GroupAhead(
            program=self._engines.program or "",
            width=count_paths_at_once(self._spec),
            now=len(current.children),
            paths=len(seeds),
            drop=self.drop,
        )
        if not self._room.reserve(group):
            return
        self._group = group
        for seed in seeds:
            request = build_path_request(
                self._spec,
                self._prompt_ids,
                seed,
                ahead.granularity,
                prompt_tokens=len(self._prompt_ids),
                engines=self._engines,
            )
            path = self._undecided[seed] = _Path(request, self._engines.generator)
            path.task = self._start(path.draw())
