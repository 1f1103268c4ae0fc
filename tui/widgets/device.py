"""The device: utilization and memory, power and temperature where it reports them."""

from __future__ import annotations

from rich.text import Text

from flashedge.tui.state.dashboard import Dashboard
from flashedge.tui.state.device import DeviceSample
from flashedge.tui.state.scores import DIM, draw_meter
from flashedge.tui.widgets.panel import Panel, format_bytes, label_line, stack_lines


class DevicePanel(Panel):
    title = "Device"

    def __init__(self) -> None:
        super().__init__(id="device")

    def draw(self, state: Dashboard, width: int, height: int) -> Text:
        device = state.device
        if device is None:
            return label_line("Device" if height < 2 else "", Text("…", style=f"not bold {DIM}"))
        part = device.memory_used_bytes / max(device.memory_total_bytes, 1)
        used = format_bytes(device.memory_used_bytes)
        used = f"{used} of {format_bytes(device.memory_total_bytes)}"
        power = _format_power(device)
        if height < 2:
            figures = f"{device.name} {device.utilization:>4.0%}  memory {used}"
            return label_line("Device", figures + (f"  {power}" if power else ""))
        room = max(width - 11 - 24, 4)
        return stack_lines(
            label_line(
                "busy", _plain_meter(device.utilization, room), f" {device.utilization:>4.0%}"
            ),
            label_line("memory", _plain_meter(part, room), f" {used}"),
            Text(f"{device.name}  {power}".rstrip(), style=DIM),
        )


def _plain_meter(part: float, width: int) -> Text:
    return Text.assemble(draw_meter(part, width), style="not bold")


def _format_power(device: DeviceSample) -> str:
    """`512/700 W  61 °C`, as far as the device reports it."""
    parts = []
    if device.power_w is not None:
        limit = f"/{device.power_limit_w:.0f}" if device.power_limit_w is not None else ""
        parts.append(f"{device.power_w:.0f}{limit} W")
    if device.temperature_c is not None:
        parts.append(f"{device.temperature_c:.0f} °C")
    return "  ".join(parts)
