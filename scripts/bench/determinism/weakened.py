"""The scheduler with one safeguard removed: what each of them is there for.

Import it once vLLM may be imported.
"""

import dataclasses
from typing import Any

from flashedge.engine.vllm.inside.determinism.windows import find_pass
from flashedge.engine.vllm.inside.scheduler import EdgeScheduler
from flashedge.scheduling.determinism import PassShape


def replace(feature: object, **methods: Any) -> None:
    """Put these methods in place of the feature's own."""
    vars(feature).update(methods)


class WithoutPadding(EdgeScheduler):
    """A pass has as many rows as there are tokens."""

    def _update_after_schedule(self, output: Any) -> None:
        super()._update_after_schedule(output)
        if (whole := find_pass(output)) is not None:
            dataclasses.replace(whole, rows=output.total_num_scheduled_tokens).attach(output)


class WithoutIsolation(EdgeScheduler):
    """Prompts are computed in shared steps."""

    def add_request(self, request: Any) -> None:
        super().add_request(request)
        if (replay := self.passes.windows.replays.get(request.request_id)) is not None:
            replay.is_current = True


class FloatingShape(PassShape):
    """A window begins at the last verified token, as in the paper."""

    def find_window(self, known: int) -> int:
        return known - 1

    def end_chunk(self, computed: int, known: int) -> int:
        return min(computed + self.window, self.find_window(known))


class WithoutAbsoluteWindows(EdgeScheduler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        windows = self.passes.windows

        def set_shape(shape: PassShape) -> None:
            windows.shape = FloatingShape(**dataclasses.asdict(shape))

        replace(windows, set_shape=set_shape)


class WithoutCommitGate(EdgeScheduler):
    """The tokens of shared steps go out as they are."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        replace(self.passes, draws_candidates=lambda request: False)


class WithoutSalt(EdgeScheduler):
    """Deterministic requests share KV with all others."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        replace(self.passes.windows, make_salt=lambda: None)


SAFEGUARDS: dict[str, type[EdgeScheduler]] = {
    "padding": WithoutPadding,
    "isolation": WithoutIsolation,
    "absolute windows": WithoutAbsoluteWindows,
    "commit gate": WithoutCommitGate,
    "salt": WithoutSalt,
}
