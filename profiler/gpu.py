"""The NVIDIA cards that CUDA shows to a program, their state by NVML, and their data sheets.

NVML lists all cards. CUDA lists those of CUDA_VISIBLE_DEVICES: numbers of the driver's order, or
ids as `nvidia-smi -L` prints them, where the beginning of a card's id is enough. CUDA stops at the
first entry that names no card, so `0,9,1` shows one card of two; an empty value hides all. Of a
card that is divided by MIG, CUDA takes the first part unless an id names one.

Ref: CUDA C++ Programming Guide, "CUDA Environment Variables"; NVIDIA MIG User Guide.
"""

import contextlib
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from flashedge.profiler import ProfileError

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
POWER_LIMIT = "the power limit"
# nvmlClocksEventReason* of nvml.h, without reasons that are no slowdown (idle, set by the user)
THROTTLES = {
    0x04: POWER_LIMIT,
    0x08: "a hardware slowdown (heat or power)",
    0x20: "heat (software slowdown)",
    0x40: "heat (hardware slowdown)",
    0x80: "the power supply's brake",
}
ERROR_GPU_IS_LOST = 15  # NVML_ERROR_GPU_IS_LOST
LOST = "no longer answers the driver: restart the machine"
HOT_WITHIN_C = 5
"""Degrees below its slowdown from which a card counts as hot. Chosen by hand: a warning at 1 °C
comes when the slowdown does, and at 50 °C every card in use would get one."""
LOW_POWER = 0.9
"""Share of the default power limit below which a card counts as limited. Chosen by hand: many
users take a few per cent off, which hardly slows a card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleCard:
    """A card, or the part of one, that CUDA shows."""

    index: int
    """The driver's number of the card."""
    device: str
    """Its entry in CUDA_VISIBLE_DEVICES: its number, or an id (GPU-..., MIG-...)."""

    def find_handle(self, nvml: Any) -> Any:
        """NVML's handle of the card, or of the part of it that CUDA takes. Raises NVMLError."""
        if self.device.startswith("MIG-"):
            return nvml.nvmlDeviceGetHandleByUUID(self.device)
        card = nvml.nvmlDeviceGetHandleByIndex(self.index)
        with contextlib.suppress(nvml.NVMLError, AttributeError):  # it can't be divided
            if nvml.nvmlDeviceGetMigMode(card)[0]:
                return nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, 0)
        return card


def find_visible(nvml: Any, value: str | None) -> tuple[VisibleCard, ...]:
    """Find the cards that CUDA shows. value: CUDA_VISIBLE_DEVICES, or None if it is unset. Raises
    ProfileError if there are none."""
    count = int(nvml.nvmlDeviceGetCount())
    if not count:
        raise ProfileError("no NVIDIA card")
    if value is None:
        return tuple(VisibleCard(index=i, device=str(i)) for i in range(count))
    found = tuple(_find_entries(nvml, value, count))
    if not found:
        raise ProfileError(
            f"{VISIBLE_DEVICES} is {value!r}, which hides all cards ({count} in this machine)",
            hint=f"unset {VISIBLE_DEVICES}, or name cards as `nvidia-smi -L` lists them:"
            f" {VISIBLE_DEVICES}=0",
        )
    return found


def _find_entries(nvml: Any, value: str, count: int) -> Iterator[VisibleCard]:
    """The cards of `value`, up to the first entry that names no card or one that came before."""
    seen: set[str] = set()
    for entry in (part.strip() for part in value.split(",")):
        index = _find_index(nvml, entry, count)
        key = entry if entry.startswith("MIG-") else str(index)
        if index is None or key in seen:
            return
        seen.add(key)
        yield VisibleCard(index=index, device=entry)


def _find_index(nvml: Any, entry: str, count: int) -> int | None:
    """The driver's number of the card that `entry` names. None if it names none, or several."""
    if entry.isdecimal():
        return int(entry) if int(entry) < count else None
    if entry.startswith("MIG-"):
        with contextlib.suppress(nvml.NVMLError):
            part = nvml.nvmlDeviceGetHandleByUUID(entry)
            return int(
                nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part))
            )
        return None
    if not entry.startswith("GPU-"):
        return None
    matching = [i for i in range(count) if _read_id(nvml, i).startswith(entry)]
    return matching[0] if len(matching) == 1 else None


def _read_id(nvml: Any, index: int) -> str:
    """The id of a card, or nothing if it does not answer."""
    with contextlib.suppress(nvml.NVMLError):
        return str(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index)))
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCard:
    """The state of one card. None stands for a figure that the card does not report."""

    name: str
    """A lost card has only its number, such as "GPU 0"."""
    driver: str
    """The driver's version."""
    memory_bytes: int
    free_bytes: int
    throttled_by: tuple[str, ...] = ()
    """Values of `THROTTLES`."""
    has_display: bool | None = None
    temperature_c: int | None = None
    slowdown_c: int | None = None
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    capability: tuple[int, int] | None = None
    """Compute capability, such as (8, 9)."""
    clock_mhz: int | None = None
    max_clock_mhz: int | None = None
    is_lost: bool = False
    """Whether the driver no longer reaches it, so that nothing else is known."""
    index: int = 0
    """The driver's number of the card, whatever CUDA_VISIBLE_DEVICES is."""
    device: str = "0"
    """As in `VisibleCard`."""

    @property
    def key(self) -> str:
        """A value of CUDA_VISIBLE_DEVICES that shows this card alone. A card that has several such
        names always has the same key."""
        return self.device if self.device.startswith("MIG-") else str(self.index)


def read_cards(nvml: Any = None, environ: Mapping[str, str] = os.environ) -> tuple[GpuCard, ...]:
    """The cards that CUDA programs see, in CUDA's order.

    `nvml` replaces the module `pynvml` in tests. Raises ProfileError when there is no card, when
    CUDA_VISIBLE_DEVICES hides all of them, or when the driver does not answer.
    """
    with open_nvml(nvml) as nvml:
        driver = str(nvml.nvmlSystemGetDriverVersion())
        found = find_visible(nvml, environ.get(VISIBLE_DEVICES))
        return tuple(_read_card(nvml, card, driver) for card in found)


@contextlib.contextmanager
def open_nvml(nvml: Any = None) -> Iterator[Any]:
    """Keep NVML open for the block; `nvml` replaces the module `pynvml` in tests.

    Raises ProfileError without a driver, and for an NVMLError that ends the block.
    """
    nvml = import_module("pynvml") if nvml is None else nvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise ProfileError(f"no NVIDIA card ({error})") from error
    try:
        yield nvml
    except nvml.NVMLError as error:
        raise ProfileError(f"the NVIDIA driver does not answer ({error})") from error
    finally:
        nvml.nvmlShutdown()


def find_warnings(cards: Sequence[GpuCard], ram_bytes: int) -> Iterator[str]:
    """A line for each thing that slows a card or can fail on it. `ram_bytes`: the host's RAM."""
    for card in cards:
        if card.is_lost:
            yield f"{card.name} {LOST}"
            continue
        for reason in card.throttled_by:
            has_clocks = card.clock_mhz is not None and card.max_clock_mhz is not None
            at = f" ({card.clock_mhz} of {card.max_clock_mhz} MHz)" if has_clocks else ""
            yield f"{card.name} is slowed by {reason}{at}"
        now_c, slowdown_c = card.temperature_c, card.slowdown_c
        if now_c is not None and slowdown_c is not None and now_c >= slowdown_c - HOT_WITHIN_C:
            yield f"{card.name} is at {now_c} °C; it slows down at {slowdown_c}"
        usual = card.default_power_limit_w
        if usual and card.power_limit_w and card.power_limit_w < LOW_POWER * usual:
            yield f"{card.name} is limited to {card.power_limit_w:.0f} of {usual:.0f} W"
        if card.has_display:
            yield f"{card.name} drives a display, which takes memory and stutters during long steps"
        if ram_bytes < card.memory_bytes:
            yield (
                f"the machine has {ram_bytes / 2**30:.0f} GiB of RAM and {card.name} has "
                f"{card.memory_bytes / 2**30:.0f}: models load slowly, "
                "and little KV can be offloaded"
            )


def _read_card(nvml: Any, card: VisibleCard, driver: str) -> GpuCard:
    try:
        return _read_state(nvml, card, driver)
    except nvml.NVMLError as error:
        if getattr(error, "value", None) != ERROR_GPU_IS_LOST:
            raise
        return GpuCard(
            name=f"GPU {card.index}",
            driver=driver,
            memory_bytes=0,
            free_bytes=0,
            is_lost=True,
            index=card.index,
            device=card.device,
        )


def _read_state(nvml: Any, card: VisibleCard, driver: str) -> GpuCard:
    handle = nvml.nvmlDeviceGetHandleByIndex(card.index)
    part = card.find_handle(nvml)

    def query(name: str, *arguments: object) -> Any:
        """The card's answer. None when this card or this NVML does not support the query."""
        call = getattr(nvml, name, None)
        try:
            return None if call is None else call(handle, *arguments)
        except nvml.NVMLError:
            return None

    memory = nvml.nvmlDeviceGetMemoryInfo(part)
    reasons = query("nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:  # the name before driver 535
        reasons = query("nvmlDeviceGetCurrentClocksThrottleReasons")
    display, limit = query("nvmlDeviceGetDisplayActive"), query("nvmlDeviceGetPowerManagementLimit")
    usual = query("nvmlDeviceGetPowerManagementDefaultLimit")
    capability = query("nvmlDeviceGetCudaComputeCapability")
    return GpuCard(
        name=str(nvml.nvmlDeviceGetName(part)),
        driver=driver,
        memory_bytes=int(memory.total),
        free_bytes=int(memory.free),
        throttled_by=tuple(why for bit, why in THROTTLES.items() if (reasons or 0) & bit),
        has_display=None if display is None else bool(display),
        temperature_c=query("nvmlDeviceGetTemperature", 0),  # NVML_TEMPERATURE_GPU
        slowdown_c=query("nvmlDeviceGetTemperatureThreshold", 1),  # …THRESHOLD_SLOWDOWN
        power_limit_w=None if limit is None else limit / 1000,
        default_power_limit_w=None if usual is None else usual / 1000,
        capability=None if capability is None else (int(capability[0]), int(capability[1])),
        clock_mhz=query("nvmlDeviceGetClockInfo", 1),  # NVML_CLOCK_SM
        max_clock_mhz=query("nvmlDeviceGetMaxClockInfo", 1),
        index=card.index,
        device=card.device,
    )


def describe_device(kind: str, nvml: Any = None) -> dict[str, str]:
    """The device and driver that figures depend on. `kind` is "cpu" or "cuda". Raises ProfileError
    when there is no card."""
    import psutil

    memory_gib = round(psutil.virtual_memory().total / 2**30)
    host = f"{_name_processor()}, {psutil.cpu_count() or 1} threads, {memory_gib} GiB"
    if kind == "cpu":
        return {"device": host, "driver": f"Linux {platform.release()}"}
    cards = read_cards(nvml)
    names = ", ".join(f"{c.name} ({c.memory_bytes / 2**30:.0f} GiB)" for c in cards)
    return {"device": f"{names}; {host}", "driver": cards[0].driver}


def _name_processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


LOW_SHARE = 0.7
"""Share of the data sheet's figure below which a measured one is suspicious. Chosen by hand: a copy
and a GEMM never reach all of it, and a card that other programs use falls far below."""


@dataclass(frozen=True, slots=True)
class DataSheet:
    """Peak figures of a card by its maker."""

    tflops: float
    """10^12 FLOP/s in bf16 without sparsity."""
    gb_per_s: float
    """10^9 bytes/s of memory."""


SHEETS: Mapping[str, DataSheet] = {
    # NVIDIA Ampere GA102 whitepaper v2.1, appendix: peak BF16 tensor, FP32 accumulate
    "GeForce RTX 3090": DataSheet(71.0, 936),
    "GeForce RTX 3090 Ti": DataSheet(80.0, 1008),
    "RTX A6000": DataSheet(154.8, 768),
    # NVIDIA Ada GPU architecture whitepaper v2.02, appendix A and B; 4080 (16 GB), 4090
    "GeForce RTX 4090": DataSheet(165.2, 1008),
    "GeForce RTX 4080": DataSheet(97.5, 716.8),
    "RTX 6000 Ada Generation": DataSheet(364.2, 960),
    # GeForce comparison page gives "AI TOPS" (FP8, sparse): bf16 dense is an eighth of it
    "GeForce RTX 4080 SUPER": DataSheet(104.5, 736),
    "GeForce RTX 4070 Ti SUPER": DataSheet(88.2, 672),
    # NVIDIA RTX Blackwell GPU architecture whitepaper, appendix A
    "GeForce RTX 5090": DataSheet(209.5, 1792),
    "GeForce RTX 5080": DataSheet(112.6, 960),
    # Data sheets: A100 (2021), H100 (2023, halved: they count sparsity), H200, L4, L40S
    "A100-PCIE-40GB": DataSheet(312, 1555),
    "A100-SXM4-40GB": DataSheet(312, 1555),
    "A100 80GB PCIe": DataSheet(312, 1935),
    "A100-SXM4-80GB": DataSheet(312, 2039),
    "H100 PCIe": DataSheet(756.5, 2039),
    "H100 80GB HBM3": DataSheet(989.4, 3350),
    "H100 NVL": DataSheet(835.5, 3938),
    "H200": DataSheet(989.4, 4800),
    "L4": DataSheet(121, 300),
    "L40S": DataSheet(362, 864),
}
"""By NVML's name without "NVIDIA". A card of another name, such as a laptop's, is unknown."""


def find_sheet(name: str) -> DataSheet | None:
    """The data sheet of a card by its NVML name. None when the card is unknown."""
    return SHEETS.get(name.removeprefix("NVIDIA "))


def compare_with_sheet(
    name: str, flops_per_s: float | None, bytes_per_s: float
) -> tuple[str, bool] | None:
    """Return (the measured figures with those of the data sheet, whether one is far below it).

    `flops_per_s` is the measured peak in bf16, if any. Returns None for an unknown card.
    """
    sheet = find_sheet(name)
    if sheet is None:
        return None
    memory = bytes_per_s / (sheet.gb_per_s * 1e9)
    text = f"{bytes_per_s / 1e9:.0f} of {sheet.gb_per_s:g} GB/s ({memory:.0%})"
    is_low = memory < LOW_SHARE
    if flops_per_s is not None:
        compute = flops_per_s / (sheet.tflops * 1e12)
        text = f"{flops_per_s / 1e12:.0f} of {sheet.tflops:g} TFLOP/s ({compute:.0%}), {text}"
        is_low = is_low or compute < LOW_SHARE
    return text, is_low
