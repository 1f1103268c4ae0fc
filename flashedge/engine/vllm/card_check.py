"""Tests, in a process of its own, whether the installed CUDA build works on this card.

It tries what every start of an engine needs: one real operation on the card, vLLM's compiled
kernels, and the C extension by which Triton launches its own. `scripts/setup.sh` and
`flashedge doctor` run it. `explain_fixed_kv` tries in another process whether KV memory can move.
"""

import dataclasses
import functools
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashedge.config import Config
from flashedge.engine.card_needs import COMPILER_HINTS, DRIVER_HINTS
from flashedge.engine.layout import Layout
from flashedge.engine.platform import runs_on_cpu
from flashedge.profiler.gpu import VISIBLE_DEVICES

LIMIT_S = 180
"""Seconds for the whole check. Chosen by hand: a tenth is too short for 79 MB of kernels and torch
from a slow disk; ten times as many would hold up setup if a driver hangs."""
TRIAL_LIMIT_S = 60  # to map a few pages, without loading kernels
_SIZE = 64  # rows and columns of the matrices that are multiplied
_REINSTALL = "delete the environment and run bash scripts/setup.sh --cuda again"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardVerdict:
    name: str
    """The tested part: cuda, kernels or triton."""
    error: str | None
    """None if the part works."""
    hint: str | None = None


def check_installed_build() -> list[CardVerdict]:
    """Run `check_build` in another process, because a CUDA context lives as long as its process."""
    try:
        done = _run_module("flashedge.engine.vllm.card_check", "--json", limit_s=LIMIT_S)
    except subprocess.TimeoutExpired:
        return [CardVerdict(name="cuda", error=f"the check took more than {LIMIT_S} s")]
    try:
        return [CardVerdict(**verdict) for verdict in json.loads(done.stdout.splitlines()[-1])]
    except (ValueError, IndexError, TypeError):
        last = (done.stderr.strip() or "no output").splitlines()[-1]
        why = f"the check ended with exit code {done.returncode}: {last}"
        return [CardVerdict(name="cuda", error=why, hint=_REINSTALL)]


def _run_module(
    name: str, *arguments: str, limit_s: int, card: str | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", name, *arguments]
    env = os.environ | ({} if card is None else {VISIBLE_DEVICES: card})
    options: dict[str, Any] = {"capture_output": True, "text": True, "check": False, "env": env}
    return subprocess.run(command, timeout=limit_s, **options)


def check_build() -> Iterator[CardVerdict]:
    """Yield a verdict on each part, up to the first that does not work."""
    parts: tuple[tuple[str, Callable[[], None], Callable[[str], str]], ...] = (
        ("cuda", multiply_on_card, _choose_cuda_hint),
        ("kernels", load_kernels, lambda error: _REINSTALL),
        ("triton", build_launcher, lambda error: COMPILER_HINTS[0]),
    )
    for name, run, choose_hint in parts:
        try:
            run()
        except Exception as error:
            line = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            yield CardVerdict(name=name, error=line, hint=choose_hint(line))
            return
        yield CardVerdict(name=name, error=None)


def multiply_on_card() -> None:
    """Multiply matrices on the card. Raises what torch raises, RuntimeError for a wrong product."""
    import torch

    torch.cuda.init()  # unlike `torch.cuda.is_available()` it says what is wrong
    ones = torch.ones(_SIZE, _SIZE, device="cuda")
    total = float((ones @ ones).sum())
    if total != _SIZE**3:
        raise RuntimeError(f"the card computed {total:g} instead of {_SIZE**3}")


def load_kernels() -> None:
    """Load vLLM's compiled kernels with their CUDA libraries. Raises ImportError."""
    found = importlib.util.find_spec("vllm")
    assert found is not None, "the installed build is checked first"
    for name in list_kernels(Path(str(found.origin)).parent):
        importlib.import_module(name)


def list_kernels(package: Path) -> list[str]:
    """vLLM's extension modules, such as `vllm._C`. Raises ImportError if there is none."""
    names = sorted(f"vllm.{file.name.partition('.')[0]}" for file in package.glob("_C*.so"))
    if not names:
        raise ImportError(f"there are no compiled kernels in {package}")
    return names


def build_launcher() -> None:
    """Have Triton build its extension `cuda_utils`, or load it from Triton's cache."""
    triton: Any = importlib.import_module("triton.runtime")
    triton.driver.active.get_current_target()


def _choose_cuda_hint(error: str) -> str:
    if "too old" in error or "driver version is insufficient" in error:
        return DRIVER_HINTS[0]
    if "not compiled with CUDA" in error or "no kernel image" in error:
        return _REINSTALL
    if "out of memory" in error:
        return "other programs fill the card: nvidia-smi lists them; a running daemon is one"
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if "No CUDA GPUs" in error and shown is not None:
        return f"CUDA_VISIBLE_DEVICES is {shown!r} and hides every card: unset it"
    return "if nvidia-smi works, reboot; CUDA can't start after a driver update until then"


def explain_fixed_kv(config: Config, layout: Layout) -> str | None:
    """Say why KV memory can't move between the engines while they run. None if it can."""
    if not config.features.kv_split:
        return "the feature kv_split is off"
    if not layout.is_shared:
        return "each engine has cards of its own"
    if not layout.moves_memory:
        return "the engines are spread over several cards"
    if runs_on_cpu() or config.features.mapped_kv:
        return None
    if config.features.mapped_kv is False:
        return "the feature mapped_kv is off"
    return try_to_map(layout.generator.visible)


@functools.cache
def try_to_map(card: str | None) -> str | None:
    """Try in a process of its own (`cuda_pages`) to map memory of the card. Returns why it fails,
    or None. card: CUDA_VISIBLE_DEVICES of the process. None leaves it as the daemon's."""
    module = "flashedge.engine.vllm.inside.kv.cuda_pages"
    try:
        trial = _run_module(module, limit_s=TRIAL_LIMIT_S, card=card)
    except subprocess.TimeoutExpired:
        return f"a trial of mapping the card's memory took more than {TRIAL_LIMIT_S} s"
    if not trial.returncode:
        return None
    reason = trial.stderr.strip() or f"exit code {trial.returncode}"
    return f"a trial of mapping the card's memory failed: {reason.splitlines()[-1]}"


def main() -> int:
    """Print the verdicts as JSON (--json), or only what does not work. Returns the exit code."""
    verdicts = list(check_build())
    failed = [verdict for verdict in verdicts if verdict.error is not None]
    if "--json" in sys.argv[1:]:
        print(json.dumps([dataclasses.asdict(verdict) for verdict in verdicts]))
    else:
        for verdict in failed:
            print(f"setup: {verdict.name} does not work here: {verdict.error}\n  {verdict.hint}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
