"""A daemon for `real_load` that can be told to forget all it has computed.

    python -m scripts.bench.mcts.forgetful_daemon

It is the product's daemon with one more route: `POST /forget` drops the KV of both engines and the
verifier's scores. Without it, a variant that serves the same searches after another one finds their
scores and half of its own work is done.
"""

import sys

from flashedge.config import Config
from flashedge.daemon.process import App, main, make_app
from scripts.bench.flashtts.kv_rig import forget_kv
from scripts.bench.smoke import is_smoke

ROUTE = "/forget"


def make_forgetful_app(config: Config, load: bool) -> App:
    from flashedge.engine.vllm import pair

    made: list[pair.VllmPair] = []

    class KnownPair(pair.VllmPair):
        async def start(self) -> None:
            made.append(self)
            await super().start()

    pair.VllmPair = KnownPair  # type: ignore[misc]
    if is_smoke():
        from tests.support.sim_daemon import make_app as make_simulated_app

        app = make_simulated_app(config, load)
    else:
        app = make_app(config, load)

    async def forget() -> dict[str, int]:
        for one in made:
            await forget_kv(one)
        return {"pairs": len(made)}

    app.add_api_route(ROUTE, forget, methods=["POST"])
    return app


if __name__ == "__main__":
    sys.exit(main(make=make_forgetful_app))
