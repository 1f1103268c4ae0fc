"""A stand-in for pynvml: one card whose answers a test sets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    pass


class FakeNvml:
    """`answers` by the end of the function's name; None: the card does not support it."""

    NVMLError = NVMLError

    def __init__(self, *, cards: int = 1, driver: bool = True, **answers: Any) -> None:
        self._cards, self._driver = cards, driver
        self._answers = {
            "Name": "NVIDIA GeForce RTX 4090",
            "MemoryInfo": SimpleNamespace(total=24 << 30, free=20 << 30),
            "DisplayActive": 0,
            "CurrentClocksEventReasons": 0x1,  # idle
            "PowerManagementLimit": 450_000,
            "PowerManagementDefaultLimit": 450_000,
            "Temperature": 50,
            "TemperatureThreshold": 90,
            "ClockInfo": 2500,
            "MaxClockInfo": 3105,
            **answers,
        }
        self.open = 0

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

    def __getattr__(self, name: str) -> Any:
        key = name.removeprefix("nvmlDeviceGet")
        if key == name or key not in self._answers:
            raise AttributeError(name)

        def call(handle: int, *arguments: object) -> Any:
            if self._answers[key] is None:
                raise NVMLError("Not Supported")
            return self._answers[key]

        return call
