"""The device: utilization and memory, power and temperature where it tells them."""

from __future__ import annotations

from rich.text import Text

from flashedge.tui.state.dashboard import Dashboard
from flashedge.tui.state.device import DeviceSample
from flashedge.tui.state.scores import DIM, meter
from flashedge.tui.widgets.panel import Panel, labelled, lines, size_text


class DevicePanel(Panel):
    title = "Device"

    def __init__(self) -> None:
        super().__init__(id="device")

    def draw(self, state: Dashboard, width: int, height: int) -> Text:
        device = state.device
        if device is None:
            return labelled("Device" if height < 2 else "", Text("…", style=f"not bold {DIM}"))
        part = device.memory_used_bytes / max(device.memory_total_bytes, 1)
        used = f"{size_text(device.memory_used_bytes)} of {size_text(device.memory_total_bytes)}"
        more = _power(device)
        if height < 2:
            said = f"{device.name} {device.utilization:>4.0%}  memory {used}"
            return labelled("Device", said + (f"  {more}" if more else ""))
        room = max(width - 11 - 24, 4)
        return lines(
            labelled("busy", _meter(device.utilization, room), f" {device.utilization:>4.0%}"),
            labelled("memory", _meter(part, room), f" {used}"),
            Text(f"{device.name}  {more}".rstrip(), style=DIM),
        )


def _meter(part: float, width: int) -> Text:
    return Text.assemble(meter(part, width), style="not bold")


def _power(device: DeviceSample) -> str:
    said = []
    if device.power_w is not None:
        limit = f"/{device.power_limit_w:.0f}" if device.power_limit_w is not None else ""
        said.append(f"{device.power_w:.0f}{limit} W")
    if device.temperature_c is not None:
        said.append(f"{device.temperature_c:.0f} °C")
    return "  ".join(said)
