"""Checks of the device: the card's driver, its present state, and the stored profile."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flashedge.config import Config
from flashedge.engine.card_needs import (
    MIN_DRIVERS,
    DriverReport,
    check_card,
    check_compiler,
    describe_cards,
    find_compiler,
    query_driver,
)
from flashedge.engine.vllm.card_check import CardVerdict, check_installed_build

if TYPE_CHECKING:
    from flashedge.profiler.profile import Profile


GOOD, WARNING, BAD = "ok", "warning", "wrong"


@dataclass(frozen=True, slots=True)
class Check:
    """What `doctor` found about one thing."""

    name: str
    verdict: str
    """GOOD, WARNING or BAD."""

    detail: str
    hint: str | None = None
    """What the user can do about it."""


_WORKING = {
    "cuda": "a multiplication on the card gives the right result",
    "kernels": "vLLM's compiled kernels can be loaded",
    "triton": "Triton can launch its kernels",
}


def check_cards(nvml: Any = None) -> Iterator[Check]:
    """Throttling, display, power limit, RAM next to the cards, and whether a card is lost.

    No check without a card. `nvml` replaces NVML (see `profiler.gpu.read_cards`).
    """
    import psutil

    from flashedge.profiler.errors import ProfileError
    from flashedge.profiler.gpu import find_warnings, read_cards

    try:
        cards = read_cards(nvml)
    except ProfileError:
        return  # the check "gpu" says why
    found = list(find_warnings(cards, psutil.virtual_memory().total))
    detail = "; ".join(found) or "not throttled, no display on it"
    if any(card.is_lost for card in cards):
        hint = "if it is lost again, check its power and its slot; see `sudo dmesg | grep -i xid`"
        yield Check("gpu state", BAD, detail, hint=hint)
    else:
        yield Check("gpu state", WARNING if found else GOOD, detail)


def check_card_users(own: Collection[int], nvml: Any = None) -> Iterator[Check]:
    """The programs that hold memory of the cards, without the pids `own`. No check where no card
    answers. `nvml` replaces NVML."""
    from flashedge.profiler.card_watch import describe_user, read_card_users
    from flashedge.profiler.errors import ProfileError
    from flashedge.profiler.gpu import read_cards

    try:
        read_cards(nvml)
    except ProfileError:
        return
    users = "; ".join(map(describe_user, read_card_users(own, nvml)))
    detail = f"held by other programs: {users}" if users else "no other program holds any"
    yield Check("gpu memory", GOOD, detail)


def check_profile(config: Config) -> Check:
    """The stored profile, compared with the data sheet of a known card."""
    from flashedge.engine.profiles import find_profile
    from flashedge.models.registry import find_pair

    kept = find_profile(find_pair(config.pair, config), config)
    if kept.profile is not None:
        return judge_profile(kept.profile)
    verdict = WARNING if kept.changed else GOOD
    return Check("profile", verdict, str(kept.why), hint="flashedge profile --quick")


def check_kv_memory(config: Config) -> Check:
    """Whether KV memory can move between the engines while they run."""
    from flashedge.engine.layout import find_layout
    from flashedge.engine.platform import detect_device_kind

    layout = find_layout(config)
    if not layout.is_shared:
        names = [str(cards.describe()) for cards in layout.each]
        detail = f"does not move: the generator has {names[0]} to itself, the verifier {names[1]}"
        return Check("kv memory", GOOD, detail)
    if not config.features.kv_split:
        detail = "divided by the pair's memory plan (the feature kv_split is off)"
    elif detect_device_kind() == "cpu":
        detail = "moves between the engines while they run; unused memory goes back to the system"
    elif config.features.mapped_kv:
        detail = "moves between the engines if a trial at the start succeeds (see flashedge logs)"
    else:
        detail = "divided once, by the profile, when the engines start"
        detail += " (the feature mapped_kv is off)"
    return Check("kv memory", GOOD, detail)


def judge_profile(found: Profile) -> Check:
    """The profile's figures. Warns if they are far below the data sheet or the card was slowed."""
    from flashedge.profiler.datasheet import compare
    from flashedge.profiler.report import format_rate

    peaks = [f"{format_rate(v, 'FLOP/s')} {dtype}" for dtype, v in found.gemm_flops_per_s.items()]
    memory = f"{format_rate(found.bytes_per_s, 'B/s')} memory"
    figures, is_slow = [", ".join([*peaks, memory]) + f" ({found.made_at[:10]})"], False
    if found.kind == "cuda":
        card = found.fingerprint["device"].partition(" (")[0]
        compared = compare(card, found.gemm_flops_per_s.get("bfloat16"), found.bytes_per_s)
        if compared is not None:
            shown, is_slow = compared
            figures.append(f"of the data sheet: {shown}")
    detail = "; ".join([*figures, *found.warnings])
    if is_slow or found.warnings:
        hint = "end other programs, then flashedge profile"
        return Check("profile", WARNING, detail, hint=hint)
    return Check("profile", GOOD, detail)


def check_cuda_build(
    query: Callable[[], DriverReport | str | None] = query_driver,
    check_build: Callable[[], list[CardVerdict]] = check_installed_build,
) -> Iterator[Check]:
    """A check for each thing that the CUDA build needs, up to the first that is missing."""
    runs: tuple[Callable[[], Check], ...] = lambda: _check_driver(query()), _check_compiler
    for run in runs:
        yield (check := run())
        if check.verdict == BAD:
            return
    for found in check_build():
        verdict = GOOD if found.error is None else BAD
        yield Check(found.name, verdict, found.error or _WORKING[found.name], hint=found.hint)


def _check_driver(found: DriverReport | str | None) -> Check:
    if found is None:
        return Check("driver", GOOD, "not checked: there is no nvidia-smi")
    cuda = max(MIN_DRIVERS)
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        cuda = int(importlib.metadata.version("nvidia-cuda-runtime").partition(".")[0])
    for need in check_card(found, cuda):
        return Check("driver", BAD, need.what, hint="; ".join(need.hints))
    assert isinstance(found, DriverReport), "check_card finds fault with a text"
    needed = f"CUDA {cuda} needs driver {MIN_DRIVERS[cuda]} or later"
    return Check("driver", GOOD, "; ".join([*describe_cards(found), needed]))


def _check_compiler() -> Check:
    if need := check_compiler():
        return Check("compiler", BAD, need.what, hint="; ".join(need.hints))
    return Check("compiler", GOOD, f"{find_compiler()}, with the headers of Python")
