"""Which shape the self-test chooses, on engines that are a formula."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from flashedge.engine.base import ExtendRequest
from flashedge.engine.self_test_turns import Turns, never_wait
from flashedge.engine.vllm import shape_probe
from flashedge.scheduling.determinism import ReplayShape


@dataclass
class FormulaEngine:
    """What a request draws depends on its seed, and on what the kernels do not keep equal."""

    position_invariant: bool = True
    chunk_invariant: bool = True
    repeatable: bool = True
    max_model_len: int = 1024
    codec: Any = field(default_factory=lambda: SimpleNamespace(encode=lambda text: range(9)))
    options: Any = field(default_factory=lambda: SimpleNamespace(max_num_seqs=64))
    shape: ReplayShape | None = None
    shapes: list[ReplayShape] = field(default_factory=list)
    open: int = 0
    drawn: int = 0

    async def set_replay_shape(self, shape: ReplayShape) -> None:
        self.shape = shape
        self.shapes.append(shape)

    async def draw(self, request: ExtendRequest) -> Any:
        assert self.shape is not None
        assert request.deterministic
        self.open += 1
        self.drawn += 1
        place = self.open if self.shape.group > 1 and not self.position_invariant else 0
        chunk = 0 if self.chunk_invariant else self.shape.prefill_windows
        await asyncio.sleep(0)
        self.open -= 1
        return (request.seed, place, chunk, 0 if self.repeatable else self.drawn)


GROUPED = {"window": 32, "group": 4, "prefill_windows": 4}


@pytest.mark.parametrize(
    ("engine", "shape", "is_invariant"),
    [
        (FormulaEngine(), GROUPED, True),
        (FormulaEngine(chunk_invariant=False), {**GROUPED, "prefill_windows": 1}, True),
        (
            FormulaEngine(position_invariant=False),
            {"window": 32, "group": 1, "prefill_windows": 1},
            False,
        ),
        (FormulaEngine(repeatable=False), None, False),
    ],
)
async def test_the_first_shape_that_holds_is_chosen(
    monkeypatch: pytest.MonkeyPatch, engine: FormulaEngine, shape: Any, is_invariant: bool
) -> None:
    monkeypatch.setattr(shape_probe, "draw_tokens", lambda of, request: of.draw(request))
    found = await shape_probe.choose_shape(engine, Turns(never_wait), on_cpu=True)  # type: ignore[arg-type]
    assert found == {"replay_shape": shape, "position_invariant": is_invariant}
    if shape is not None:
        assert engine.shapes[-1] == ReplayShape.from_json(shape), "the engine uses it"


def test_a_pass_of_a_card_has_no_more_rows_than_its_memory_is_planned_for() -> None:
    rows = [shape.rows for shape in shape_probe.list_shapes(128, on_cpu=False)]
    assert rows == [128, 128, 64]
    assert [shape.rows for shape in shape_probe.list_shapes(1000, on_cpu=False)] == [256, 256, 64]
    assert [shape.rows for shape in shape_probe.list_shapes(32, on_cpu=False)] == [64]
