"""Random events on the real scheduler of a verifier: a pass computes whole windows, from where a
window begins, or to the end of a path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flashedge.engine.vllm.inside.determinism.windows import find_pass
from flashedge.engine.vllm.inside.keys import ARGS_KEY, DETERMINISTIC
from flashedge.scheduling.determinism import ReplayShape
from scripts.bench.determinism.token_runner import VOCABULARY, draw_token
from tests.support.replay_machine import Asked, HashRunner, Machine


class ScoreRunner(HashRunner):
    """Scores a path by a hash, once its last token is computed."""

    shape: ReplayShape

    def make_output(self, output: Any, names: list[str]) -> Any:
        from vllm.v1.outputs import ModelRunnerOutput

        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[[] for _ in names],
            pooler_output=[self._score(output, name) for name in names],
        )

    def _score(self, output: Any, name: str) -> Any:
        import torch

        span = self.compute(output, name)
        if find_pass(output) is not None:
            window, length = self.shape.window, len(span.inputs)
            assert span.start % window == 0, "a pass begins within a window"
            assert span.end % window == 0 or span.end == length, "a pass ends within a window"
        if span.end < len(span.inputs):
            return None
        return torch.tensor([draw_token(span.inputs, 0)])


class ScoreMachine(Machine):
    requests = 30
    arrival_rate, abort_rate, restart_rate = 0.8, 0.1, 0.02

    def __init__(self, start: Callable[[], Any], seed: int, *, is_async: bool = False) -> None:
        self._paths: list[tuple[int, ...]] = []
        super().__init__(start, seed, is_async=is_async)

    def _start_runner(self) -> ScoreRunner:
        runner = ScoreRunner(self._error_rate, self.draw)
        runner.shape = self.scheduler.passes.windows.shape
        return runner

    def _make_request(self) -> Asked:
        draw = self.draw
        before = draw.choice(self._paths) if self._paths and draw.random() < 0.6 else ()
        path = (*before, *draw.choices(range(VOCABULARY), k=draw.randint(1, 40)))
        path = path[: self.scheduler.max_model_len - 1]
        self._paths.append(path)
        return Asked(prompt=path, seed=0, max_tokens=1, deterministic=draw.random() < 0.7)

    def _take(self, asked: Asked, found: Any) -> None:
        assert found.pooling_output is not None
        asked.tokens += found.pooling_output.tolist()

    def _build_params(self, asked: Asked) -> dict[str, Any]:
        from vllm import PoolingParams

        params = PoolingParams(
            task="token_classify",
            skip_reading_prefix_cache=False,
            extra_kwargs={ARGS_KEY: {DETERMINISTIC: asked.deterministic}},
        )
        return {"sampling_params": None, "pooling_params": params}

    def _check_answers(self) -> None:
        for asked in self.asked:
            if asked.max_tokens:  # else it was aborted
                assert asked.tokens == [draw_token(asked.prompt, 0)], (
                    "a score was lost, or is wrong"
                )
