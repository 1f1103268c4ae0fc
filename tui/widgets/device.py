"""The device: utilization and memory, power and temperature where it reports them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from flashedge.tui.state.dashboard import Dashboard
from flashedge.tui.state.device import DeviceSample
from flashedge.tui.state.scores import DIM, draw_meter
from flashedge.tui.widgets.panel import Panel, format_bytes, label_line, stack_lines


class DevicePanel(Panel):
    def __init__(self) -> None:
        super().__init__(id="device")

    def draw(self, state: Dashboard, width: int, height: int) -> Text:
        devices = state.devices
        if not devices:
            return label_line("Device", Text("…", style=f"not bold {DIM}"))
        others = _draw_others(state) if height > 2 else []
        if len(devices) > 1:
            return stack_lines(_draw_cards(devices, width, height - len(others)), *others)
        (device,) = devices
        power = _format_power(device)
        if height < 2:
            figures = f"{device.name} {device.utilization:>4.0%}  memory {_format_memory(device)}"
            return label_line("Device", figures + (f"  {power}" if power else ""))
        memory = f" {_format_memory(device)}"
        beside = f" {device.utilization:>4.0%}  {power}".rstrip()
        room = max(width - 11 - max(len(memory), len(beside)), 4)
        return stack_lines(
            label_line("Busy", _plain_meter(device.utilization, room), beside),
            label_line("Memory", _plain_meter(_used_share(device), room), memory),
            *others,
        )


def _draw_others(state: Dashboard) -> list[Text]:
    """`Held by    ollama 3.2 GiB, Xorg 0.4 GiB`: the other programs on the cards."""
    others = state.daemon.others if state.daemon is not None else ()
    return [label_line("Held by", ", ".join(others))] if others else []


def _draw_cards(cards: Sequence[DeviceSample], width: int, height: int) -> Text:
    """A line for each card. The last line counts those for which there is no room."""
    if height < 2:
        figures = "  ".join(
            f"{_name(card)} {card.utilization:.0%}, memory {_used_share(card):.0%}"
            for card in cards
        )
        return label_line("Device", figures)
    shown = cards if len(cards) <= height else cards[: height - 1]
    lines = [_draw_card(card, width) for card in shown]
    if len(shown) < len(cards):
        hidden = f"and {len(cards) - len(shown)} more: nvidia-smi shows them"
        lines.append(Text(hidden, style=DIM))
    return stack_lines(*lines)


def _draw_card(card: DeviceSample, width: int) -> Text:
    """`GPU 1      ███▌     87%  20.1 GiB of 23.6 GiB  320/450 W  61 °C`."""
    figures = f" {card.utilization:>4.0%}  {_format_memory(card)}  {_format_power(card)}".rstrip()
    room = max(width - 11 - len(figures), 4)
    return label_line(_name(card), _plain_meter(card.utilization, room), figures)


def _name(card: DeviceSample) -> str:
    return f"GPU {card.label}"[:10]


def _used_share(device: DeviceSample) -> float:
    return device.memory_used_bytes / max(device.memory_total_bytes, 1)


def _format_memory(device: DeviceSample) -> str:
    used = format_bytes(device.memory_used_bytes)
    return f"{used} of {format_bytes(device.memory_total_bytes)}"


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


def name_device(devices: Sequence[DeviceSample]) -> str:
    """The only device's name. Several cards have theirs in their lines."""
    return devices[0].name if len(devices) == 1 else ""
