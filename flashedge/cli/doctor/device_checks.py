"""Checks of the device: the present state of the cards, and the stored profile."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from flashedge.cli.doctor.check import BAD, GOOD, WARNING, Check
from flashedge.config import Config

if TYPE_CHECKING:
    from flashedge.profiler.profile import Profile


def check_cards(nvml: Any = None) -> Iterator[Check]:
    """Throttling, display, power limit, RAM next to the cards, and whether a card is lost.

    No check without a card.

    `nvml` replaces NVML (see `flashedge.profiler.gpu.read_cards`).
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
    verdict = WARNING if found else GOOD
    if any(card.is_lost for card in cards):
        hint = "if it is lost again, check its power and its slot; see `sudo dmesg | grep -i xid`"
        yield Check(name="gpu state", verdict=BAD, detail=detail, hint=hint)
    else:
        yield Check(name="gpu state", verdict=verdict, detail=detail)


def check_card_users(own: Collection[int], nvml: Any = None) -> Iterator[Check]:
    """The programs that hold memory of the cards, but those of the pids `own`. No check where no
    card answers.

    `nvml` replaces NVML (see `flashedge.profiler.card_watch.read_card_users`).
    """
    from flashedge.profiler.card_watch import describe_user, read_card_users
    from flashedge.profiler.errors import ProfileError
    from flashedge.profiler.gpu import read_cards

    try:
        read_cards(nvml)
    except ProfileError:
        return
    users = read_card_users(own, nvml)
    detail = "; ".join(describe_user(user) for user in users)
    yield Check(
        name="gpu memory",
        verdict=GOOD,
        detail=f"held by other programs: {detail}" if users else "no other program holds any",
    )


def check_profile(config: Config) -> Check:
    """The stored profile, compared with the data sheet of a known card."""
    from flashedge.engine.profiles import find_profile
    from flashedge.models.registry import find_pair

    kept = find_profile(find_pair(config.pair, config), config)
    if kept.profile is not None:
        return judge_profile(kept.profile)
    verdict = WARNING if kept.changed else GOOD
    return Check(
        name="profile", verdict=verdict, detail=str(kept.why), hint="flashedge profile --quick"
    )


def check_kv_memory(config: Config) -> Check:
    """Whether KV memory can move between the engines while they run."""
    from flashedge.engine.layout import find_layout
    from flashedge.engine.platform import detect_device_kind

    layout = find_layout(config)
    if not layout.is_shared:
        names = [str(cards.describe()) for cards in layout.each]
        detail = f"does not move: the generator has {names[0]} to itself, the verifier {names[1]}"
        return Check(name="kv memory", verdict=GOOD, detail=detail)
    if not config.features.kv_split:
        detail = "divided by the pair's memory plan (the feature kv_split is off)"
    elif detect_device_kind() == "cpu":
        detail = "moves between the engines while they run; unused memory goes back to the system"
    elif config.features.mapped_kv:
        detail = "moves between the engines if a trial at the start succeeds (see flashedge logs)"
    else:
        detail = (
            "divided once, by the profile, when the engines start (the feature mapped_kv is off)"
        )
    return Check(name="kv memory", verdict=GOOD, detail=detail)


def judge_profile(found: Profile) -> Check:
    """The profile's figures. Warns if they are far below the data sheet or the card was slowed."""
    from flashedge.profiler.datasheet import compare
    from flashedge.profiler.report import format_rate

    peaks = [f"{format_rate(v, 'FLOP/s')} {dtype}" for dtype, v in found.gemm_flops_per_s.items()]
    memory = f"{format_rate(found.bytes_per_s, 'B/s')} memory"
    figures = [", ".join([*peaks, memory]) + f" ({found.made_at[:10]})"]
    low = False
    if found.kind == "cuda":
        card = found.fingerprint["device"].partition(" (")[0]
        compared = compare(card, found.gemm_flops_per_s.get("bfloat16"), found.bytes_per_s)
        if compared is not None:
            figures.append(f"of the data sheet: {compared[0]}")
            low = compared[1]
    figures += found.warnings
    slowed = low or bool(found.warnings)
    return Check(
        name="profile",
        verdict=WARNING if slowed else GOOD,
        detail="; ".join(figures),
        hint="end other programs, then flashedge profile" if slowed else None,
    )
