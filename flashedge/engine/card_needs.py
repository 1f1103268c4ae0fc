"""Checks driver, card and compiler of a machine before the CUDA build is downloaded to it.

`scripts/setup.sh` runs this file by its path before anything is installed, so it imports nothing
but the standard library. `flashedge doctor` calls the same functions.

The compiler is needed at run time. vLLM's first model runner computes the slot of every token by a
Triton kernel (`vllm/v1/worker/block_table.py`), whatever the mode and the attention backend. Triton
builds the C extension that launches its kernels on the machine itself, against Python's headers
(`triton/runtime/build.py`).
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MIN_DRIVERS = {12: 525, 13: 580}
"""The oldest driver branch that runs the libraries of each CUDA major version. Ref: NVIDIA, CUDA
Compatibility, table 1 of "Minor Version Compatibility"."""
MIN_CAPABILITIES = {12: (5, 0), 13: (7, 5)}
"""The oldest compute capability that each CUDA major version compiles for."""
_SMI_LIMIT_S = 60  # a driver that has to wake up several cards takes tens of seconds
_EXTENSION = "#include <Python.h>\nint flashedge_needs(void) { return 0; }\n"

USE_CPU = "or use the CPU build: bash scripts/setup.sh --cpu"
DRIVER_HINTS = (
    "Ubuntu: sudo ubuntu-drivers install; Debian: sudo apt install nvidia-driver (from NVIDIA's"
    " repository); Fedora: sudo dnf install akmod-nvidia (from RPM Fusion); then reboot",
    USE_CPU,
)
COMPILER_HINTS = (
    "Debian, Ubuntu: sudo apt install build-essential; Fedora: sudo dnf install gcc gcc-c++",
    USE_CPU,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmetNeed:
    """One thing that keeps the CUDA build from starting, and what the user can do about it."""

    what: str
    hints: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverReport:
    """What `nvidia-smi` says of the first card, and the names of all."""

    driver: str
    names: tuple[str, ...]
    """In the driver's order, at least one."""
    capability: tuple[int, int] | None = None
    """The compute capability, (major, minor). None if nvidia-smi does not know it."""
    mig_is_on: bool = False
    mig_devices: int = 0


def read_cuda_major(requirements: Path) -> int:
    """The CUDA major version that a requirements file pins. Raises ValueError, OSError."""
    found = re.search(r"^nvidia-cuda-runtime[^=\n]*==(\d+)\.", requirements.read_text(), re.M)
    if found is None:
        raise ValueError(f"{requirements} pins no nvidia-cuda-runtime")
    return int(found[1])


def query_driver() -> DriverReport | str | None:
    """Ask `nvidia-smi`. Returns the reason as a str if it fails, None if it is not installed."""
    if shutil.which("nvidia-smi") is None:
        return None
    output = _run_smi("--query-gpu=driver_version,name", "--format=csv,noheader")
    rows = [line.split(", ", 1) for line in output.splitlines() if re.match(r"\d+\.\d+.*, ", line)]
    if not rows:
        return output.splitlines()[0] if output else "nvidia-smi printed nothing"
    # Old drivers answer with an error when they do not know one of these two fields.
    printed = _run_smi("--query-gpu=compute_cap", "--format=csv,noheader")
    capability = re.match(r"(\d+)\.(\d+)", printed)
    mig = _run_smi("--query-gpu=mig.mode.current", "--format=csv,noheader")
    first_card = _run_smi("-L").split("\nGPU ")[0]
    return DriverReport(
        driver=rows[0][0],
        names=tuple(name for _, name in rows),
        capability=capability and (int(capability[1]), int(capability[2])),
        mig_is_on=mig.startswith("Enabled"),
        mig_devices=len(re.findall(r"^\s+MIG ", first_card, re.M)),
    )


def _run_smi(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SMI_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return f"nvidia-smi did not answer within {_SMI_LIMIT_S} s"
    except OSError as error:
        return f"nvidia-smi can't be run: {error}"
    return done.stdout.strip("\n")


def check_card(found: DriverReport | str, cuda: int) -> Iterator[UnmetNeed]:
    """Yield what keeps CUDA from running, by what `query_driver` found. cuda: its major version."""
    if isinstance(found, str):
        yield UnmetNeed(what=f"the NVIDIA driver does not answer: {found}", hints=DRIVER_HINTS)
        return
    driver, needed = re.match(r"\d+", found.driver), MIN_DRIVERS[cuda]
    if driver is not None and int(driver[0]) < needed:
        yield UnmetNeed(
            what=f"the NVIDIA driver is {found.driver}, but CUDA {cuda} needs {needed} or later",
            hints=DRIVER_HINTS,
        )
    least = MIN_CAPABILITIES[cuda]
    if found.capability is not None and found.capability < least:
        has, needs = (".".join(map(str, pair)) for pair in (found.capability, least))
        yield UnmetNeed(
            what=f"{found.names[0]} has compute capability {has}; CUDA {cuda} needs {needs}",
            hints=(USE_CPU.removeprefix("or "),),
        )
    if found.mig_is_on and not found.mig_devices:
        yield UnmetNeed(
            what=f"MIG is on for {found.names[0]}, but it has no MIG device",
            hints=("turn it off: sudo nvidia-smi -i 0 -mig 0", USE_CPU),
        )


def describe_cards(found: DriverReport) -> Iterator[str]:
    """Yield what the user should know about the card that FlashEdge takes, one line each."""
    yield f"card: {found.names[0]}, driver {found.driver}"
    if len(found.names) > 1:
        yield (
            f"{len(found.names)} cards: FlashEdge uses the first, unless you choose another:"
            " CUDA_VISIBLE_DEVICES=1 chooses the second"
        )
    if found.mig_devices:
        yield (
            "MIG is on: FlashEdge uses the first MIG device. The driver reports the memory of the"
            " whole card, so set kv_bytes yourself"
        )


def find_compiler() -> str | None:
    """The C compiler that Triton would take, None if there is none."""
    return os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")


def check_compiler() -> UnmetNeed | None:
    """Compile an empty extension of this Python, as Triton does. None if that works."""
    compiler = find_compiler()
    if compiler is None:
        other = shutil.which("cc")
        return UnmetNeed(
            what="there is no C compiler (gcc or clang), which Triton needs on a card",
            hints=(*((f"export CC={other}, or:",) if other else ()), *COMPILER_HINTS),
        )
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    include = sysconfig.get_paths(scheme=scheme)["include"]  # where Triton looks for Python.h
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "needs.c")
        source.write_text(_EXTENSION)
        command = [compiler, str(source), "-shared", "-fPIC", f"-I{include}"]
        command += ["-o", str(Path(folder, "needs.so"))]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            return UnmetNeed(what=f"the C compiler can't be run: {error}", hints=COMPILER_HINTS)
    if done.returncode == 0:
        return None
    lines = done.stderr.splitlines()
    reason = next((line for line in lines if "error" in line), lines[0] if lines else "no output")
    if "Python.h" in reason:
        python = "python{}.{}".format(*sys.version_info)
        return UnmetNeed(
            what=f"the headers of {sys.executable} are missing (Python.h in {include}), which"
            " Triton needs on a card",
            hints=(
                f"Debian, Ubuntu: sudo apt install {python}-dev; Fedora: sudo dnf install"
                f" {python}-devel (python3-devel for the system's Python)",
                USE_CPU,
            ),
        )
    return UnmetNeed(
        what=f"{compiler} can't compile a Python extension: {reason.strip()}", hints=COMPILER_HINTS
    )


def main(requirements: str) -> int:
    """Print the unmet needs, or else the card. requirements: the file that pins the CUDA build."""
    cuda, found = read_cuda_major(Path(requirements)), query_driver()
    needs = [] if found is None else list(check_card(found, cuda))
    compiler = check_compiler()
    needs += [] if compiler is None else [compiler]
    for need in needs:
        print(f"setup: {need.what}", *need.hints, sep="\n  ")
    if found is None:
        print(
            "  no nvidia-smi here, so the driver is not checked;"
            f" it must be {MIN_DRIVERS[cuda]} or later where FlashEdge runs"
        )
    elif isinstance(found, DriverReport) and not needs:
        print(*(f"  {line}" for line in describe_cards(found)), sep="\n")
    return 1 if needs else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
