"""A daemon for `faults`: its generator can be let run out of memory, and its KV memory moves often.

    python -m scripts.bench.foundation.frail_daemon

It is the product's daemon but for three things. The generator has a logits processor that raises
when a file appears. The KV split changes with every level, and lets each engine own all of the
memory in turn. And an engine that served for a tenth of a second counts as one that lives, or the
back-off of restarts would make a schedule of hundreds of kills take hours.
"""

import sys
from dataclasses import replace
from typing import Any

from flashedge.config import Config
from flashedge.daemon.process import App, main, make_app
from scripts.bench.flashtts.moving_split import make_moving_split
from scripts.bench.foundation.shortage_trigger import PROCESSORS

STABLE_S = 0.1
PATHS = (4, 8, 16)
"""Paths that a share of the KV memory has room for, one number after the other."""


def make_frail_app(config: Config, load: bool) -> App:
    from flashedge.engine.vllm import pair as pair_module
    from flashedge.engine.vllm.process import restarts
    from flashedge.runtime.kv import build

    pair: Any = pair_module  # whose own name for the function is replaced
    restarts.STABLE_S = STABLE_S
    build_options, build_manager_with = pair.build_options, build.build_manager_with

    def build_frail_options(name: str, *args: Any, **kwargs: Any) -> Any:
        options = build_options(name, *args, **kwargs)
        if name != "generator":
            return options
        return replace(options, extra={"logits_processors": PROCESSORS})

    async def build_moving_manager(
        curves: Any, generator: Any, verifier: Any, **kwargs: Any
    ) -> Any:
        views = await generator.view(), await verifier.view()
        manager = await build_manager_with(curves, generator, verifier, **kwargs)
        forced = make_moving_split(views, alternates=True, paths=PATHS)
        manager.choose_split = forced  # type: ignore[method-assign,assignment]
        return manager

    pair.build_options = build_frail_options
    build.build_manager_with = build_moving_manager
    return make_app(config, load)


if __name__ == "__main__":
    sys.exit(main(make=make_frail_app))
