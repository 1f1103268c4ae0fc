"""Tests, before the engines start, whether this card's memory can be mapped and unmapped."""

from __future__ import annotations

import functools
import logging
import subprocess
import sys

log = logging.getLogger(__name__)
LIMIT_S = 60


@functools.cache
def card_maps_memory() -> bool:
    """Whether a trial process (`cuda_pages`) could map and unmap memory of the card.

    If not, the log says why. The trial takes seconds and runs once in a process.
    """
    try:
        trial = subprocess.run(
            [sys.executable, "-m", "flashedge.engine.vllm.inside.kv.cuda_pages"],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        log.warning("the KV memory is fixed: the trial of mapping took more than %d s", LIMIT_S)
        return False
    if trial.returncode:
        lines = trial.stderr.strip().splitlines()
        reason = lines[-1] if lines else f"the trial of mapping exited with {trial.returncode}"
        log.warning("the KV memory is fixed: %s", reason)
    return trial.returncode == 0
