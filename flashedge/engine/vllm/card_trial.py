"""Whether memory of this card can come and go: tried once, before the engines start."""

from __future__ import annotations

import functools
import logging
import subprocess
import sys

log = logging.getLogger(__name__)
LIMIT_S = 60


@functools.cache
def card_maps_memory() -> bool:
    """Whether a process of its own (`cuda_pages`) mapped memory and found it free again; what it
    said else is in the log. Takes seconds, once a process."""
    try:
        found = subprocess.run(
            [sys.executable, "-m", "flashedge.engine.vllm.inside.kv.cuda_pages"],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        log.warning("KV memory stays as planned: its trial took more than %d s", LIMIT_S)
        return False
    if found.returncode:
        said = found.stderr.strip().splitlines()
        log.warning("KV memory stays as planned: %s", said[-1] if said else "its trial failed")
    return found.returncode == 0
