"""A daemon process whose application is a stub: it answers /health and has no engines.

Run it as a program with the daemon's own arguments. STUB_* variables make it misbehave.
"""

import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

from flashedge.config import Config
from flashedge.daemon import process as daemon
from flashedge.daemon.files import OUTPUT_BYTES
from flashedge.errors import CheckpointError


def make_stub(config: Config, load: bool) -> Any:
    behaviour = os.environ.get("STUB_BEHAVIOUR", "")
    if behaviour == "bad checkpoint":
        raise CheckpointError("model.safetensors is missing", hint="pull it")
    if behaviour == "crash":
        raise RuntimeError("boom")
    if behaviour == "chatty":
        print("x" * (OUTPUT_BYTES + 1), flush=True)
    if behaviour == "child":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    loads_s = float(os.environ.get("STUB_LOADS_S", "0"))
    ready_at = 0.0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal ready_at
        if scope["type"] == "lifespan":
            ready_at = time.monotonic() + loads_s
            while True:
                message = await receive()
                await send({"type": message["type"] + ".complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        state = "ready" if time.monotonic() >= ready_at else "starting"
        if behaviour == "failed":
            state = "failed"
        detail = "no memory" if state == "failed" else "loading the weights"
        body = f'{{"status": "{state}", "detail": "{detail}"}}'.encode()
        headers = [(b"content-type", b"application/json")]
        code = 200 if state == "ready" else 503
        await send({"type": "http.response.start", "status": code, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    service = SimpleNamespace(idle=SimpleNamespace(idle_s=0.0, busy_at=0.0), should_unload=False)
    app.state = SimpleNamespace(service=service)  # type: ignore[attr-defined]
    return app


if __name__ == "__main__":
    code = daemon.main(make=make_stub)
    if os.environ.get("STUB_BEHAVIOUR") == "lingers":
        time.sleep(1.5)
    sys.exit(code)
