"""The scheduler with one safeguard removed: what each of them is there for.

Import it once vLLM may be imported.
"""

from __future__ import annotations

from typing import Any

from flashedge.engine.vllm.inside.determinism.replay import Replay
from flashedge.engine.vllm.inside.scheduler import EdgeScheduler


class WithoutPadding(EdgeScheduler):
    """A pass has as many rows as there are tokens."""

    def count_rows(self, output: Any) -> int:
        return int(output.total_num_scheduled_tokens)


class WithoutIsolation(EdgeScheduler):
    """Prompts are computed in shared steps."""

    def begin(self, request: Any) -> None:
        super().begin(request)
        if (replay := self.replays.get(request.request_id)) is not None:
            replay.is_current = True


class WithoutAbsoluteWindows(EdgeScheduler):
    """A window begins at the last verified token, as in the paper."""

    def find_window(self, replay: Replay) -> int:
        return replay.verified - 1

    def end_window(self, replay: Replay) -> int:
        end: int = min(self.find_window(replay) + self.shape.window, self.max_model_len - 1)
        return end

    def end_chunk(self, replay: Replay, computed: int) -> int:
        return min(computed + self.shape.window, self.find_window(replay))


class WithoutCommitGate(EdgeScheduler):
    """The tokens of shared steps go out as they are."""

    def withholds(self, request: Any) -> bool:
        return False


class WithoutSalt(EdgeScheduler):
    """Deterministic requests share KV with all others."""

    def make_salt(self) -> str | None:
        return None


SAFEGUARDS: dict[str, type[EdgeScheduler]] = {
    "none removed": EdgeScheduler,
    "padding": WithoutPadding,
    "isolation": WithoutIsolation,
    "absolute windows": WithoutAbsoluteWindows,
    "commit gate": WithoutCommitGate,
    "salt": WithoutSalt,
}
