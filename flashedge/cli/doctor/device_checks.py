"""What `doctor` says of the device: the cards' state just now, and the kept profile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flashedge.cli.doctor.check import GOOD, WARNING, Check
from flashedge.config import Config

if TYPE_CHECKING:
    from flashedge.profiler.profile import Profile


def card_state(nvml: Any = None) -> Iterator[Check]:
    """Throttling, display, power limit and RAM beside the cards; nothing where there is none.

    nvml: see `flashedge.profiler.gpu.read_cards`.
    """
    import psutil

    from flashedge.profiler.errors import ProfileError
    from flashedge.profiler.gpu import read_cards, warnings_of

    try:
        found = list(warnings_of(read_cards(nvml), psutil.virtual_memory().total))
    except ProfileError:
        return  # the check `gpu` says why
    detail = "; ".join(found) or "not slowed, no display on it"
    yield Check(name="gpu state", verdict=WARNING if found else GOOD, detail=detail)


def profile(config: Config) -> Check:
    """The figures that were measured here, beside the data sheet of a known card."""
    from flashedge.models.registry import find_pair
    from flashedge.runtime.profiles import find_profile

    kept = find_profile(find_pair(config.pair, config), config)
    if kept.profile is not None:
        return judged(kept.profile)
    verdict = WARNING if kept.changed else GOOD
    return Check(
        name="profile", verdict=verdict, detail=str(kept.why), hint="flashedge profile --quick"
    )


def kv_memory(config: Config) -> Check:
    """Whether one engine can have what the other gives up while both run."""
    from flashedge.engine.platform import device_kind

    if not config.scheduling_kv_split:
        detail = "as the memory plan divides it ([scheduling] kv_split is off)"
    elif device_kind() == "cpu":
        detail = "moves between the engines while they run; what neither uses is the system's"
    elif config.scheduling_mapped_kv:
        detail = "moves between the engines if a trial of the card succeeds (the log says so)"
    else:
        detail = (
            "divided by the profile when the engines start, for good "
            "([scheduling] mapped_kv is off)"
        )
    return Check(name="kv memory", verdict=GOOD, detail=detail)


def judged(found: Profile) -> Check:
    """Figures; a warning where they are far below the data sheet or the device was slowed."""
    from flashedge.profiler.datasheet import compare
    from flashedge.profiler.report import rate

    peaks = [f"{rate(v, 'FLOP/s')} {dtype}" for dtype, v in found.gemm_flops_per_s.items()]
    memory = f"{rate(found.bytes_per_s, 'B/s')} memory"
    said = [", ".join([*peaks, memory]) + f" ({found.made_at[:10]})"]
    low = False
    if found.kind == "cuda":
        card = found.fingerprint["device"].partition(" (")[0]
        beside = compare(card, found.gemm_flops_per_s.get("bfloat16"), found.bytes_per_s)
        if beside is not None:
            said.append(f"of the data sheet: {beside[0]}")
            low = beside[1]
    said += found.warnings
    slowed = low or bool(found.warnings)
    return Check(
        name="profile",
        verdict=WARNING if slowed else GOOD,
        detail="; ".join(said),
        hint="end other programs, then flashedge profile" if slowed else None,
    )
