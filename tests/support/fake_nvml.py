"""A stand-in for pynvml: cards whose answers a test sets."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """As pynvml's: `value` is NVML's number."""

    def __init__(self, text: str = "", value: int = 999) -> None:
        super().__init__(text)
        self.value = value


LOST, TIMEOUT, NOT_FOUND = 15, 10, 6


class FakeNvml:
    """`answers` by the end of the function's name; None: the card does not support it.

    each: for each card what it answers otherwise.
    mig: the memory of the parts that the first card is divided into, by their ids.
    """

    NVMLError = NVMLError
    nvmlSystemGetDriverVersion = staticmethod(lambda: "580.95")
    nvmlDeviceGetHandleByIndex = nvmlDeviceGetIndex = staticmethod(lambda index: index)
    nvmlEventSetCreate = staticmethod(lambda: "events")
    nvmlEventSetFree = staticmethod(lambda events: None)

    def __init__(
        self,
        *,
        cards: int = 1,
        driver: bool = True,
        each: Sequence[Mapping[str, Any]] = (),
        mig: Mapping[str, Any] = MappingProxyType({}),
        **answers: Any,
    ) -> None:
        self._cards, self._driver = len(each) or cards, driver
        self._each, self._mig = each, mig
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

    def nvmlDeviceGetCount(self) -> int:
        return self._cards

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        if handle in self.lost:
            raise NVMLError("GPU is lost", LOST)
        return f"GPU-{handle}a2b3c4d"

    def nvmlDeviceGetHandleByUUID(self, uuid: str | bytes) -> Any:
        wanted = uuid.decode() if isinstance(uuid, bytes) else uuid
        for handle in range(self._cards):
            if wanted == self.nvmlDeviceGetUUID(handle):
                return handle
        if wanted in self._mig:
            return wanted
        raise NVMLError("Not Found", NOT_FOUND)

    def nvmlDeviceGetMigMode(self, handle: int) -> tuple[int, int]:
        if not self._mig:
            raise NVMLError("Not Supported")
        return int(handle == 0), int(handle == 0)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, index: int) -> str:
        return list(self._mig)[index]

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: str) -> int:
        assert handle in self._mig
        return 0

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

        def call(handle: Any, *arguments: object) -> Any:
            if (0 if handle in self._mig else handle) in self.lost:
                raise NVMLError("GPU is lost", LOST)
            if handle in self._mig and key in ("Name", "MemoryInfo"):
                return self._mig[handle] if key == "MemoryInfo" else f"{self._answers[key]} MIG"
            own = self._each[handle] if self._each else {}
            answer = own.get(key, self._answers[key])
            if answer is None:
                raise NVMLError("Not Supported")
            return answer

        return call


CARDS = {
    "4090": ("NVIDIA GeForce RTX 4090", 24_564, (8, 9)),
    "3090": ("NVIDIA GeForce RTX 3090", 24_576, (8, 6)),
    "4060ti": ("NVIDIA GeForce RTX 4060 Ti", 16_380, (8, 9)),
    "5090": ("NVIDIA GeForce RTX 5090", 32_607, (12, 0)),
    "3060": ("NVIDIA GeForce RTX 3060", 12_288, (8, 6)),
}
"""For each card its name, its MiB by NVML and its compute capability."""


def fake_card(key: str, *, display: bool = False, **answers: Any) -> FakeNvml:
    """One idle card of `CARDS`, which keeps 1.8 % of its memory for the driver."""
    return FakeNvml(**_answer(key, display=display), **answers)


def fake_cards(*keys: str, **answers: Any) -> FakeNvml:
    return FakeNvml(each=[_answer(key) for key in keys], **answers)


def _answer(key: str, *, display: bool = False) -> dict[str, Any]:
    name, mib, capability = CARDS[key]
    total = mib << 20
    memory = SimpleNamespace(total=total, free=total - round(0.018 * total), used=0)
    answers = {"Name": name, "MemoryInfo": memory, "CudaComputeCapability": capability}
    return {**answers, "DisplayActive": int(display)}
