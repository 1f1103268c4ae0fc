"""A stand-in for pynvml: cards whose answers a test sets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """As pynvml's: `value` is NVML's number."""

    def __init__(self, text: str = "", value: int = 999) -> None:
        super().__init__(text)
        self.value = value


LOST = 15
TIMEOUT = 10


class FakeNvml:
    """`answers` by the end of the function's name; None: the card does not support it."""

    NVMLError = NVMLError

    def __init__(self, *, cards: int = 1, driver: bool = True, **answers: Any) -> None:
        self._cards, self._driver = cards, driver
        self._answers = {
            "Name": "NVIDIA GeForce RTX 4090",
            "MemoryInfo": SimpleNamespace(total=24 << 30, free=20 << 30),
            "CudaComputeCapability": (8, 9),
            "DisplayActive": 0,
            "CurrentClocksEventReasons": 0x1,  # idle
            "PowerManagementLimit": 450_000,
            "PowerManagementDefaultLimit": 450_000,
            "Temperature": 50,
            "TemperatureThreshold": 90,
            "ClockInfo": 2500,
            "MaxClockInfo": 3105,
            "UUID": "GPU-0",
            **answers,
        }
        self.open = 0
        self.lost: set[int] = set()
        """Cards that no longer answer."""
        self.registered: list[tuple[int, int]] = []
        """(card, event types), as the program asked for them."""
        self.xids: list[tuple[int, int]] = []
        """(card, number) of the errors that wait to be read."""

    def nvmlInit(self) -> None:
        if not self._driver:
            raise NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.95"

    def nvmlDeviceGetCount(self) -> int:
        return self._cards

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlEventSetCreate(self) -> str:
        return "events"

    def nvmlEventSetFree(self, events: str) -> None: ...

    def nvmlDeviceRegisterEvents(self, handle: int, types: int, events: str) -> None:
        self.registered.append((handle, types))

    def nvmlEventSetWait(self, events: str, timeout_ms: int) -> SimpleNamespace:
        if not self.xids:
            raise NVMLError("Timeout", TIMEOUT)
        card, number = self.xids.pop(0)
        return SimpleNamespace(device=card, eventType=0x08, eventData=number)

    def __getattr__(self, name: str) -> Any:
        key = name.removeprefix("nvmlDeviceGet")
        if key == name or key not in self._answers:
            raise AttributeError(name)

        def call(handle: int, *arguments: object) -> Any:
            if handle in self.lost:
                raise NVMLError("GPU is lost", LOST)
            if self._answers[key] is None:
                raise NVMLError("Not Supported")
            return self._answers[key]

        return call


CARDS = {
    "4090": ("NVIDIA GeForce RTX 4090", 24_564, (8, 9)),
    "3090": ("NVIDIA GeForce RTX 3090", 24_576, (8, 6)),
    "4060ti": ("NVIDIA GeForce RTX 4060 Ti", 16_380, (8, 9)),
    "5090": ("NVIDIA GeForce RTX 5090", 32_607, (12, 0)),
}
"""For each card its name, its MiB by NVML and its compute capability."""


def fake_card(key: str, *, display: bool = False, **answers: Any) -> FakeNvml:
    """One idle card of `CARDS`, which keeps 1.8 % of its memory for the driver."""
    name, mib, capability = CARDS[key]
    total = mib << 20
    memory = SimpleNamespace(total=total, free=total - round(0.018 * total), used=0)
    return FakeNvml(
        Name=name,
        MemoryInfo=memory,
        CudaComputeCapability=capability,
        DisplayActive=int(display),
        **answers,
    )
