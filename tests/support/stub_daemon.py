"""A daemon process whose application is a stub: it answers all paths and has no engines.

Run it as a program with the daemon's own arguments. STUB_* variables make it misbehave.
"""

import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from flashedge.config import Config
from flashedge.daemon import process as daemon
from flashedge.daemon.files import OUTPUT_BYTES
from flashedge.errors import CheckpointError


def make_stub(config: Config, load: bool) -> Any:
    behaviour = os.environ.get("STUB_BEHAVIOUR", "")
    match behaviour:
        case "bad checkpoint":
            raise CheckpointError("model.safetensors is missing", hint="pull it")
        case "crash":
            raise RuntimeError("boom")
        case "chatty":
            print("x" * (OUTPUT_BYTES + 1), flush=True)
        case "child":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    loads_s, asked_at = float(os.environ.get("STUB_LOADS_S", "0")), 0.0

    async def tell_health(_: Request) -> JSONResponse:
        nonlocal asked_at
        asked_at = asked_at or time.monotonic()
        if behaviour == "failed":
            return JSONResponse({"status": "failed", "detail": "no memory"}, 503)
        ready = time.monotonic() >= asked_at + loads_s
        told = {"status": "ready" if ready else "starting", "detail": "loading the weights"}
        return JSONResponse(told, 200 if ready else 503)

    app = Starlette(routes=[Route("/{path:path}", tell_health)])
    idle = SimpleNamespace(idle_s=0.0, busy_at=0.0)
    app.state.service = SimpleNamespace(idle=idle, should_unload=False)
    return app


if __name__ == "__main__":
    code = daemon.main(make=make_stub)
    if os.environ.get("STUB_BEHAVIOUR") == "lingers":
        time.sleep(1.5)
    sys.exit(code)
