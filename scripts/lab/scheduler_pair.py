"""A pair of real engines with another scheduler, such as those of `forced_drafts`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.pair import VllmPair
from flashedge.models.specs import ModelSpec

EAGER = "scripts.lab.forced_drafts.EagerScheduler"
FORCED = "scripts.lab.forced_drafts.ForcedScheduler"


class SchedulerPair(VllmPair):
    """Its drafts of steps are made whatever they cost: on a CPU they seldom pay."""

    scheduler = EAGER

    def _build_options(self, name: str, spec: ModelSpec, path: Path, *sizes: Any) -> EngineOptions:
        options = super()._build_options(name, spec, path, *sizes)
        return replace(options, extra={**options.extra, "scheduler_cls": self.scheduler})


class ForcedPair(SchedulerPair):
    """Its drafts are often wrong, too."""

    scheduler = FORCED
