"""How a generator is let run out of memory: by a file that appears. See `injected_shortage`."""

import tempfile
from pathlib import Path

PROCESSORS = [
    "flashedge.engine.vllm.inside.noise:PositionNoise",
    "scripts.bench.foundation.injected_shortage:InjectedShortage",
]
"""The generator's `logits_processors`, with the one that fails."""


def find_trigger(pid: int) -> Path:
    """The file whose appearance lets the engine process `pid` fail. The failing step removes it."""
    return Path(tempfile.gettempdir()) / f"flashedge-shortage-{pid}"
