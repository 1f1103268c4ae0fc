"""`doctor`: find what is wrong on this machine, and how to fix it."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Annotated

import typer
from typer import Option

from flashedge.cli import exit_codes, output
from flashedge.cli.doctor import device_checks
from flashedge.cli.doctor.device_checks import BAD, GOOD, WARNING, Check
from flashedge.cli.output import Json
from flashedge.config import Config, check_exposure, load_config
from flashedge.engine.card_needs import DRIVER_HINTS
from flashedge.engine.platform import CHECKED, detect_device_kind, find_vllm
from flashedge.errors import FlashEdgeError, RequestError
from flashedge.sizes import format_size

_MARKS = {GOOD: ("✓", "green"), WARNING: ("!", "yellow"), BAD: ("✗", "red")}
SETUP = "bash scripts/setup.sh"


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
        raise typer.Exit(exit_codes.NO_RESULT)


def run_checks() -> Iterator[Check]:
    """All checks, in their order."""
    from flashedge.daemon.files import find_holder
    from flashedge.profiler.card_watch import find_own_pids

    yield _check_python()
    basics = (_check_torch(), _check_vllm(), _check_card())
    yield from basics
    yield from device_checks.check_cards()
    if all(check.verdict == GOOD for check in basics) and detect_device_kind() == "cuda":
        yield from device_checks.check_cuda_build()
    try:
        config = load_config()
    except FlashEdgeError as error:
        yield Check("configuration", BAD, str(error), hint=error.hint)
        return
    missing = "" if config.config_file.exists() else " (no such file: defaults)"
    yield Check("configuration", GOOD, f"{config.config_file}{missing}")
    yield _check_memory()
    holder = find_holder(config)
    own = frozenset() if holder is None else find_own_pids(holder)
    yield from device_checks.check_card_users(own)
    checks: dict[str, Callable[[Config], Check]] = {
        "disk": _check_disk,
        "state folder": _check_state_folder,
        "models": _check_models,
        "calibrations": _check_calibrations,
        "profile": device_checks.check_profile,
        "kv memory": device_checks.check_kv_memory,
        "daemon": _check_daemon,
    }
    for name, check in checks.items():
        try:
            yield check(config)
        except FlashEdgeError as error:
            yield Check(name, BAD, str(error), hint=error.hint)


def _check_python() -> Check:
    version = platform.python_version()
    good = (3, 11) <= sys.version_info[:2] <= (3, 13)
    detail = f"{version} ({sys.executable})"
    hint = None if good else f"use Python 3.11 to 3.13: {SETUP} --python /path/to/python3.11"
    return Check("python", GOOD if good else BAD, detail, hint=hint)


def _check_torch() -> Check:
    try:
        return Check("torch", GOOD, importlib.metadata.version("torch"))
    except importlib.metadata.PackageNotFoundError:
        return Check("torch", BAD, "not installed", hint=SETUP)


def _check_vllm() -> Check:
    try:
        name, version = find_vllm()
    except FlashEdgeError as error:
        return Check("vllm", BAD, str(error), hint=error.hint)
    detail = version if name == "vllm" else f"{version} ({name})"
    if version.startswith(f"{CHECKED}."):
        return Check("vllm", GOOD, detail)
    detail += f"; FlashEdge needs {CHECKED}.x"
    return Check("vllm", BAD, detail, hint=SETUP)


def _check_card() -> Check:
    cards = find_gpus()
    if isinstance(cards, str):
        with contextlib.suppress(FlashEdgeError):
            if detect_device_kind() == "cuda":
                detail = f"{cards}, but the installed vLLM is the CUDA build"
                return Check("gpu", BAD, detail, hint="; ".join(DRIVER_HINTS))
        return Check("gpu", GOOD, f"{cards}; the engines run on the CPU")
    detail = ", ".join(
        f"{name} ({format_size(free)} of {format_size(total)} free)" for name, free, total in cards
    )
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        if importlib.metadata.version("torch").endswith("+cpu"):
            detail += "; the installed torch can't use it"
            return Check("gpu", WARNING, detail, hint=f"{SETUP} --cuda")
    return Check("gpu", GOOD, detail)


def find_gpus() -> list[tuple[str, int, int]] | str:
    """(name, free bytes, total bytes) of each NVIDIA card, or the reason why there is none."""
    from flashedge.profiler.errors import ProfileError
    from flashedge.profiler.gpu import read_cards

    try:
        return [(card.name, card.free_bytes, card.memory_bytes) for card in read_cards()]
    except ProfileError as error:
        return str(error)


def _check_memory() -> Check:
    import psutil

    memory = psutil.virtual_memory()
    detail = f"{format_size(memory.available)} of {format_size(memory.total)} free"
    if memory.available < 3 << 30:
        hint = "the two engines need about 3 GiB with the bundled pair; end other programs"
        return Check("memory", WARNING, detail, hint=hint)
    return Check("memory", GOOD, detail)


def _check_disk(config: Config) -> Check:
    at = next(p for p in (config.state_dir, *config.state_dir.parents) if p.exists())
    free = shutil.disk_usage(at).free
    detail = f"{format_size(free)} free under {at}"
    if free < 1 << 29:
        return Check("disk", BAD, detail, hint="free some disk space")
    return Check("disk", GOOD, detail)


def _check_state_folder(config: Config) -> Check:
    from flashedge.daemon.files import prepare_state_dir

    prepare_state_dir(config)
    return Check("state folder", GOOD, str(config.state_dir))


def _check_models(config: Config) -> Check:
    from flashedge.models.folders import resolve_model
    from flashedge.models.registry import find_pair

    pair = find_pair(config.pair, config)
    first, second = (resolve_model(model, config) for model in (pair.generator, pair.verifier))
    return Check("models", GOOD, f"pair {pair.name}: {first}, {second}")


def _check_calibrations(config: Config) -> Check:
    from flashedge.models.folders import pair_fingerprint
    from flashedge.models.registry import load_pairs
    from flashedge.runtime.request.calibrations import load_calibrations

    pairs = load_pairs(config)
    shown, stale = [], False
    for found in load_calibrations(config):
        pair, remark = pairs.get(found.pair), ""
        if pair is None or pair_fingerprint(pair, config) != found.fingerprint:
            remark = ", not used: the pair has changed since"
        elif found.loss_bound is None:
            remark = ", made without a bound: calibrate again"
        stale = stale or bool(remark)
        shown.append(f"{found.strategy} on {found.pair} ({found.date[:10]}{remark})")
    detail = ", ".join(shown) or "none: early exits use the strategies' defaults"
    hint = "flashedge calibrate problems.jsonl --strategy NAME" if stale else None
    return Check("calibrations", WARNING if stale else GOOD, detail, hint=hint)


def _check_daemon(config: Config) -> Check:
    from flashedge.client.sync_client import Client
    from flashedge.daemon.files import find
    from flashedge.daemon.process import bind

    check_exposure(config)
    record = find(config)
    if record is None:
        bind(config.host, config.port).close()
        return Check(
            "daemon", GOOD, f"none is running; port {config.port} on {config.host} is free"
        )
    with Client(record.url, api_key=config.api_key) as client:
        health = client.health(timeout_s=5.0)
    state = str(health["status"])
    detail = f"{state} at {record.url}" + (f": {health['detail']}" if health.get("detail") else "")
    if state in ("ready", "starting", "unloaded"):
        return Check("daemon", GOOD, detail)
    verdict = WARNING if state == "degraded" else BAD
    return Check("daemon", verdict, detail, hint="flashedge logs")
