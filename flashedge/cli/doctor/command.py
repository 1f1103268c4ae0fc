"""`doctor`: find what is wrong on this machine, and how to fix it."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import platform
import shutil
import sys
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from flashedge.cli import output
from flashedge.cli.doctor import BAD, GOOD, WARNING, Check
from flashedge.cli.output import Json
from flashedge.config import Config, check_exposure, load_config
from flashedge.engine.card_needs import (
    DRIVER_HINTS,
    MIN_DRIVERS,
    DriverReport,
    check_card,
    check_compiler,
    describe_cards,
    find_compiler,
    query_driver,
)
from flashedge.engine.platform import CHECKED_MINOR, detect_device_kind, find_vllm, runs_on_cpu
from flashedge.engine.vllm.card_check import CardVerdict, check_installed_build, explain_fixed_kv
from flashedge.errors import ConfigError, FlashEdgeError, RequestError
from flashedge.sizes import format_size

if TYPE_CHECKING:
    from flashedge.profiler.profile import Profile

_MARKS = {GOOD: ("✓", "green"), WARNING: ("!", "yellow"), BAD: ("✗", "red")}
_WORKING = {
    "cuda": "a multiplication on the card gives the right result",
    "kernels": "vLLM's compiled kernels can be loaded",
    "triton": "Triton can launch its kernels",
}
"""What is said of each part of the CUDA build that works, by `CardVerdict.name`."""
SETUP = "bash scripts/setup.sh"
Found = str | Check
"""What a check finds. A text is the detail of a check that found nothing wrong."""


def doctor(
    fit: Annotated[
        str | None,
        Option(metavar="PAIR", help="Check only whether this pair would fit, before a download."),
    ] = None,
    gpu: Annotated[
        str | None,
        Option(
            metavar="CARD",
            help="With --fit: a card (rtx4090), its memory (80GiB), or several (8GiB,8GiB).",
            show_default="this machine's",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check this machine and say how to fix what is wrong.

    Exits 1 if something is wrong.
    """
    if gpu is not None and fit is None:
        raise RequestError("--gpu needs a pair to check", hint="add --fit PAIR", param="gpu")
    if fit is None:
        checks = list(run_checks())
    else:
        from flashedge.cli.doctor.fit import check_fit

        checks = list(check_fit(fit, gpu, load_config()))
    if as_json:
        output.print_json([dataclasses.asdict(c) for c in checks])
    else:
        console = output.stdout()
        for check in checks:
            mark, style = _MARKS[check.verdict]
            console.print(mark, style=style, end=" ")
            console.print(f"{check.name}: {check.detail}", soft_wrap=True)
            if check.hint:
                console.print(f"    {check.hint}", soft_wrap=True)
    if any(c.verdict == BAD for c in checks):
        raise typer.Exit(output.NO_RESULT)


def run_checks() -> Iterator[Check]:
    from flashedge.daemon.files import find_holder
    from flashedge.profiler.card_watch import find_own_pids

    yield _run("python", _check_python)
    basics = [_run("torch", _check_torch), _run("vllm", _check_vllm), *check_cards()]
    yield from basics
    is_good = all(check.verdict == GOOD for check in basics if check.name != "gpu state")
    if is_good and detect_device_kind() == "cuda":
        yield from check_cuda_build()
    try:
        config = load_config()
    except FlashEdgeError as error:
        yield Check("configuration", BAD, str(error), hint=error.hint)
        return
    missing = "" if config.config_file.exists() else " (no such file, so the defaults apply)"
    yield Check("configuration", GOOD, f"{config.config_file}{missing}")
    yield _run("memory", _check_memory)
    holder = find_holder(config)
    yield from check_card_users(frozenset() if holder is None else find_own_pids(holder))
    checks: dict[str, Callable[[Config], Found]] = {
        "disk": _check_disk,
        "state folder": _check_state_folder,
        "models": _check_models,
        "calibrations": _check_calibrations,
        "profile": check_profile,
        "kv memory": check_kv_memory,
        "daemon": _check_daemon,
    }
    for name, check in checks.items():
        yield _run(name, check, config)


def _run(name: str, check: Callable[..., Found], *arguments: Any) -> Check:
    try:
        found = check(*arguments)
    except FlashEdgeError as error:
        return Check(name, BAD, str(error), hint=error.hint)
    return found if isinstance(found, Check) else Check(name, GOOD, found)


def _check_python() -> str:
    detail = f"{platform.python_version()} ({sys.executable})"
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        hint = f"use Python 3.11 to 3.13: {SETUP} --python /path/to/python3.11"
        raise ConfigError(detail, hint=hint)
    return detail


def _check_torch() -> str:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError("not installed", hint=SETUP) from None


def _check_vllm() -> str:
    name, version = find_vllm()
    detail = version if name == "vllm" else f"{version} ({name})"
    if not version.startswith(f"{CHECKED_MINOR}."):
        raise ConfigError(f"{detail}; FlashEdge needs {CHECKED_MINOR}.x", hint=SETUP)
    return detail


def check_cards(nvml: Any = None) -> Iterator[Check]:
    """A check of the cards, and, if there are any, one of what slows them or may fail on them.

    `nvml` replaces NVML (see `profiler.gpu.read_cards`).
    """
    import psutil

    from flashedge.profiler import ProfileError
    from flashedge.profiler.gpu import find_warnings, read_cards

    try:
        cards = read_cards(nvml)
    except ProfileError as error:
        yield _judge_no_card(str(error))
        return
    detail = ", ".join(
        f"{card.name} ({format_size(card.free_bytes)} of {format_size(card.memory_bytes)} free)"
        for card in cards
    )
    gpu = Check("gpu", GOOD, detail)
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        if importlib.metadata.version("torch").endswith("+cpu"):
            detail += "; the installed torch can't use it"
            gpu = Check("gpu", WARNING, detail, hint=f"{SETUP} --cuda")
    yield gpu
    found = list(find_warnings(cards, psutil.virtual_memory().total))
    detail = "; ".join(found) or "not throttled, no display"
    if any(card.is_lost for card in cards):
        hint = "if it is lost again, check its power and its slot; see `sudo dmesg | grep -i xid`"
        yield Check("gpu state", BAD, detail, hint=hint)
    else:
        yield Check("gpu state", WARNING if found else GOOD, detail)


def _judge_no_card(reason: str) -> Check:
    """A machine without a card is wrong only for vLLM's CUDA build."""
    with contextlib.suppress(FlashEdgeError):
        if detect_device_kind() == "cuda":
            detail = f"{reason}, but the installed vLLM is the CUDA build"
            return Check("gpu", BAD, detail, hint="; ".join(DRIVER_HINTS))
    return Check("gpu", GOOD, f"{reason}; the engines run on the CPU")


def check_card_users(own: Collection[int], nvml: Any = None) -> Iterator[Check]:
    """Check which programs, apart from the pids `own`, hold memory of the cards. Yields nothing
    where no card answers. `nvml` replaces NVML."""
    from flashedge.profiler import ProfileError
    from flashedge.profiler.card_watch import describe_user, read_card_users
    from flashedge.profiler.gpu import read_cards

    with contextlib.suppress(ProfileError):
        read_cards(nvml)
        users = "; ".join(map(describe_user, read_card_users(own, nvml)))
        detail = f"held by other programs: {users}" if users else "no other program holds any"
        yield Check("gpu memory", GOOD, detail)


def check_cuda_build(
    query: Callable[[], DriverReport | str | None] = query_driver,
    check_build: Callable[[], list[CardVerdict]] = check_installed_build,
) -> Iterator[Check]:
    """A check for each thing that the CUDA build needs, up to the first that is missing."""
    needs: dict[str, Callable[[], str]] = {
        "driver": lambda: _check_driver(query()),
        "compiler": _check_compiler,
    }
    for name, need in needs.items():
        yield (check := _run(name, need))
        if check.verdict == BAD:
            return
    for found in check_build():
        verdict = GOOD if found.error is None else BAD
        yield Check(found.name, verdict, found.error or _WORKING[found.name], hint=found.hint)


def _check_driver(found: DriverReport | str | None) -> str:
    if found is None:
        return "not checked: there is no nvidia-smi"
    cuda = max(MIN_DRIVERS)
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        cuda = int(importlib.metadata.version("nvidia-cuda-runtime").partition(".")[0])
    if need := next(check_card(found, cuda), None):
        raise ConfigError(need.what, hint="; ".join(need.hints))
    assert isinstance(found, DriverReport), "check_card finds fault with a text"
    needed = f"CUDA {cuda} needs driver {MIN_DRIVERS[cuda]} or later"
    return "; ".join([*describe_cards(found), needed])


def _check_compiler() -> str:
    if need := check_compiler():
        raise ConfigError(need.what, hint="; ".join(need.hints))
    return f"{find_compiler()}, with the headers of Python"


def _check_memory() -> Found:
    import psutil

    memory = psutil.virtual_memory()
    detail = f"{format_size(memory.available)} of {format_size(memory.total)} free"
    if memory.available < 3 << 30:
        hint = "the two engines need about 3 GiB with the bundled pair; end other programs"
        return Check("memory", WARNING, detail, hint=hint)
    return detail


def _check_disk(config: Config) -> str:
    at = next(p for p in (config.state_dir, *config.state_dir.parents) if p.exists())
    free = shutil.disk_usage(at).free
    detail = f"{format_size(free)} free under {at}"
    if free < 1 << 29:  # chosen by hand: enough for logs and runs of the next days
        raise ConfigError(detail, hint="free some disk space")
    return detail


def _check_state_folder(config: Config) -> str:
    from flashedge.daemon.files import prepare_state_dir

    prepare_state_dir(config)
    return str(config.state_dir)


def _check_models(config: Config) -> str:
    from flashedge.models.folders import resolve_model
    from flashedge.models.registry import find_pair

    pair = find_pair(config.pair, config)
    folders = [str(resolve_model(model, config)) for model in pair.models.values()]
    return f"pair {pair.name}: {', '.join(folders)}"


def _check_calibrations(config: Config) -> Check:
    from flashedge.models.folders import fingerprint_pair
    from flashedge.models.registry import load_pairs
    from flashedge.runtime.request.calibrations import load_calibrations

    pairs = load_pairs(config)
    shown, stale = [], False
    for found in load_calibrations(config):
        pair, remark = pairs.get(found.pair), ""
        if pair is None or fingerprint_pair(pair, config) != found.fingerprint:
            remark = ", not used: the pair has changed since"
        elif found.loss_bound is None:
            remark = ", made without a bound: calibrate again"
        stale = stale or bool(remark)
        shown.append(f"{found.strategy} on {found.pair} ({found.date[:10]}{remark})")
    detail = ", ".join(shown) or "none: early exits use the strategies' defaults"
    hint = "flashedge calibrate problems.jsonl --strategy NAME" if stale else None
    return Check("calibrations", WARNING if stale else GOOD, detail, hint=hint)


def check_profile(config: Config) -> Found:
    """The stored profile, compared with the data sheet of a known card."""
    from flashedge.engine.profiles import find_profile
    from flashedge.models.registry import find_pair

    pair = find_pair(config.pair, config)
    if not pair.has_verifier:
        return "none: a pair without a verifier is scheduled by estimates"
    kept = find_profile(pair, config)
    if kept.profile is not None:
        return judge_profile(kept.profile)
    verdict = WARNING if kept.changed else GOOD
    return Check("profile", verdict, str(kept.why), hint="flashedge profile --quick")


def check_kv_memory(config: Config) -> str:
    """Say whether KV memory can move between the engines while they run."""
    from flashedge.engine.layout import find_layout
    from flashedge.models.registry import find_pair

    if not find_pair(config.pair, config).has_verifier:
        return "the generator has all of it: there is no verifier to share it with"
    layout = find_layout(config)
    if not layout.is_shared:
        names = [str(cards.describe()) for cards in layout.each]
        return f"does not move: the generator has {names[0]} to itself, the verifier {names[1]}"
    if why := explain_fixed_kv(config, layout):
        return f"divided once, when the engines start: {why}"
    owner = "system" if runs_on_cpu() else "card"
    return f"moves between the engines while they run; unused memory goes back to the {owner}"


def judge_profile(found: Profile) -> Found:
    """The profile's figures, as a warning if they are far below the data sheet or have warnings."""
    from flashedge.cli.profile import format_rate
    from flashedge.profiler.gpu import compare_with_sheet

    peaks = [f"{format_rate(v, 'FLOP/s')} {dtype}" for dtype, v in found.gemm_flops_per_s.items()]
    memory = f"{format_rate(found.bytes_per_s, 'B/s')} memory"
    figures = [f"{', '.join([*peaks, memory])} ({found.made_at[:10]})"]
    is_slow = False
    if found.kind == "cuda":
        card = found.fingerprint["device"].partition(" (")[0]
        flops_per_s = found.gemm_flops_per_s.get("bfloat16")
        compared = compare_with_sheet(card, flops_per_s, found.bytes_per_s)
        if compared is not None:
            shown, is_slow = compared
            figures.append(f"of the data sheet: {shown}")
    detail = "; ".join([*figures, *found.warnings])
    if is_slow or found.warnings:
        hint = "end other programs, then flashedge profile"
        return Check("profile", WARNING, detail, hint=hint)
    return detail


def _check_daemon(config: Config) -> Found:
    from flashedge.client.sync_client import Client
    from flashedge.daemon.control import find_daemon
    from flashedge.daemon.process import bind

    check_exposure(config)
    record = find_daemon(config)
    if record is None:
        bind(config.host, config.port).close()
        return f"none is running; port {config.port} on {config.host} is free"
    with Client(record.url, api_key=config.api_key) as client:
        health = client.health(timeout_s=5.0)
    state = str(health["status"])
    detail = f"{state} at {record.url}" + (f": {health['detail']}" if health.get("detail") else "")
    if state in ("ready", "starting", "unloaded"):
        return detail
    verdict = WARNING if state == "degraded" else BAD
    return Check("daemon", verdict, detail, hint="flashedge logs")
