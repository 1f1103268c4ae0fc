"""Stand-ins for programs on PATH: nvidia-smi with any card, a C compiler, and PATH without one."""

import os
from pathlib import Path

RTX_4090 = "NVIDIA GeForce RTX 4090"
NO_HEADERS = "echo 'needs.c:1:10: fatal error: Python.h: No such file or directory' >&2\nexit 1"
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that"
    " the latest NVIDIA driver is installed and running."
)


def fake(folder: Path, name: str, body: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def fake_nvidia_smi(
    folder: Path,
    *,
    driver: str = "580.95.05",
    names: tuple[str, ...] = (RTX_4090,),
    capability: str = "8.9",
    mig_devices: int | None = None,
) -> None:
    """An nvidia-smi that knows these cards. `mig_devices`: None means that MIG is off."""
    listed = [f"GPU {i}: {name} (UUID: GPU-{i})" for i, name in enumerate(names)]
    listed[1:1] = [f"  MIG 1g.10gb Device {i}: (UUID: MIG-{i})" for i in range(mig_devices or 0)]
    mode = "Enabled" if mig_devices is not None else "[N/A]"
    answers = {
        "-L": listed,
        "*driver_version,name*": [f"{driver}, {name}" for name in names],
        "*compute_cap*": [capability for _ in names],
        "*mig.mode.current*": [mode for _ in names],
    }
    cases = [
        f"  {asked}) printf '%s\\n' {' '.join(map(repr, lines))} ;;"
        for asked, lines in answers.items()
    ]
    fake(folder, "nvidia-smi", "\n".join(['case "$*" in', *cases, "  *) exit 2 ;;", "esac"]))


def link_programs(folder: Path, *, without: tuple[str, ...]) -> None:
    folder.mkdir(exist_ok=True)
    for place in os.environ["PATH"].split(":"):
        for program in Path(place).glob("*") if place else ():
            link = folder / program.name
            if program.name not in without and not link.is_symlink():
                link.symlink_to(program)
