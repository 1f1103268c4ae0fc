"""What the machine does: tokens per second, latency, KV memory, and the devices."""

from collections.abc import Sequence

from rich.text import Text

from flashedge.sizes import format_size
from flashedge.tui.colours import DIM, SCALE, WARNING, draw_meter, draw_sparkline
from flashedge.tui.device import DeviceSample
from flashedge.tui.state import Dashboard
from flashedge.tui.summary import DaemonStatus, EngineStatus
from flashedge.tui.widgets.panel import LABEL_CELLS, Panel, dim_line, label_line, stack_lines, thin
from flashedge.types import UNUSED

_QUIET = 0.05
"""The KV memory has one line while both engines are ready and use less than this share of theirs.
Chosen by hand: at 0 a single block would open more lines; much higher, a busy engine would not."""

_FULL = 0.8
"""A small terminal shows the KV memory only if an engine is not ready or uses this share of it.
Chosen by hand: much lower, the tree would lose a line for nothing; near 1, it comes too late."""


def build_machine_panels() -> tuple[Panel, ...]:
    return (
        Panel(draw_rates, id="rates"),
        Panel(draw_latency, id="latency", is_quiet=_hides_latency),
        Panel(draw_memory, id="memory", is_quiet=_hides_memory),
        Panel(draw_devices, id="device"),
    )


def draw_rates(state: Dashboard, width: int, height: int) -> Text:
    """Draw the tokens per second of all nodes, and of those that the searches keep (goodput)."""
    rates, now = state.rates, state.current_rate
    generated = f"{now.tokens_per_s:,.0f}" if now else "–"
    kept = f"{now.goodput_per_s:,.0f}" if now else "–"
    drawn = [rate.tokens_per_s for rate in rates]
    if height > 1 and now is None and not any(drawn):
        return dim_line("Tokens/s", "–")
    if height < 2:
        history = draw_sparkline(drawn, max(width - LABEL_CELLS - 34, 0))
        figures = f"{generated:>7}  goodput {kept:>7}  "
        return label_line("Tokens/s", figures, Text(history, style=SCALE[0]))
    room, top = max(width - LABEL_CELLS - 8, 1), max(drawn, default=0.0)
    useful = draw_sparkline([rate.goodput_per_s for rate in rates], room, top)
    whole = draw_sparkline(drawn, room, top)
    return stack_lines(
        label_line("Tokens/s", f"{generated:>7} ", Text(whole, style=SCALE[0])),
        label_line("Goodput", f"{kept:>7} ", Text(useful, style=SCALE[-1])),
    )


def draw_latency(state: Dashboard, width: int, height: int) -> Text:
    """Draw how fast the last requests were, the prefix cache's hits, and the share of drafted
    tokens that were right, as far as known."""
    latency = state.daemon.latency if state.daemon is not None else ()
    named = [("search" if one.kind == "run" else one.kind, one) for one in latency]
    first = [(name, one.first_token_s) for name, one in named]
    each = [(name, one.token_s) for name, one in named if one.token_s]
    lines = [_draw_times("1st token", first, 1, "s", width)] if first else []
    lines += [_draw_times("Next token", each, 1000, "ms", width)] if each else []
    hits = [
        f"{name[:3]} {engine.cache_hits:.0%}"
        for name, engine in _list_engines(state.daemon)
        if engine.cache_hits is not None
    ]
    if state.daemon is not None and (share := state.daemon.generator.accepted_drafts) is not None:
        hits.append(f"· drafts right {share:.0%}")
    lines += [label_line("Cache hits", "  ".join(hits))] if hits else []
    return stack_lines(*lines[:height])


def _hides_latency(state: Dashboard, is_small: bool) -> bool:
    return is_small or not draw_latency(state, 80, 1)


def _draw_times(
    label: str, times: Sequence[tuple[str, tuple[float, float]]], scale: int, unit: str, width: int
) -> Text:
    """`chat 0.12, p90 0.4 s · search 0.3, p90 1.1 s`, as many as there is room for."""
    parts = [
        f"{name} {scale * median:.3g}, p90 {scale * p90:.3g} {unit}"
        for name, (median, p90) in times
    ]
    while len(parts) > 1 and LABEL_CELLS + len(" · ".join(parts)) > width:
        parts.pop()
    return label_line(label, " · ".join(parts))


def _hides_memory(state: Dashboard, is_small: bool) -> bool:
    engines = _list_engines(state.daemon)
    return is_small and all(e.state == "ready" and e.kv_share < _FULL for _, e in engines)


def draw_memory(state: Dashboard, width: int, height: int) -> Text:
    daemon = state.daemon
    if daemon is None:
        return dim_line("KV", "unknown: no daemon")
    engines = _list_engines(daemon)
    idle = all(e.state == "ready" and e.kv_share < _QUIET for _, e in engines)
    if height > 1 and not idle:
        return stack_lines(
            *(_draw_engine(name, engine, width) for name, engine in engines),
            label_line("KV split", thin(_draw_split(daemon, max(width - LABEL_CELLS - 10, 4)))),
        )
    cells = 8 if width > 60 else 0
    parts = [_draw_briefly(name, engine, cells) for name, engine in engines]
    return label_line("KV", *map(thin, (*parts, _draw_split(daemon, cells))))


def _list_engines(daemon: DaemonStatus | None) -> tuple[tuple[str, EngineStatus], ...]:
    known = () if daemon is None else (daemon.generator, daemon.verifier)
    named = zip(("generator", "verifier"), known, strict=False)
    return tuple((name, engine) for name, engine in named if engine.state != UNUSED)


def _draw_briefly(name: str, engine: EngineStatus, cells: int) -> Text:
    """`gen ███░░  44%`, in which the bar has `cells` cells, or is left out if that is 0."""
    if engine.state != "ready":
        return Text.assemble(f"{name[:3]} ", (f"{engine.state}  ", f"bold {WARNING}"))
    bar = Text.assemble(draw_meter(engine.kv_share, cells), " ") if cells else Text()
    return Text.assemble(f"{name[:3]} ", bar, f"{engine.kv_share:.0%}  ")


def _draw_engine(name: str, engine: EngineStatus, width: int) -> Text:
    label = f"KV {name[:3]}"
    if engine.state != "ready":
        return label_line(label, Text(engine.state, style=WARNING))
    figures = f" {engine.kv_share:>4.0%} of {format_size(engine.kv_quota_bytes)}"
    return _draw_used(label, engine.kv_share, figures, width)


def _draw_split(daemon: DaemonStatus, width: int) -> Text:
    """`G███▒▒V 66:34`: the generator's part and the verifier's. `split 66:34` if `width` is 0."""
    share = daemon.generator_share
    if daemon.generator.owns_cards:
        return Text("each on its own cards", style=DIM)
    if share is None:
        return Text("split unknown", style=DIM)
    ratio = f" {share * 100:.0f}:{(1 - share) * 100:.0f}"
    if not width:
        return Text(f"split{ratio}")
    cells = round(share * width)
    bar = (("█" * cells, SCALE[0]), ("▒" * (width - cells), SCALE[-1]))
    return Text.assemble("G", *bar, ("V", "bold"), ratio, style="bold")


def draw_devices(state: Dashboard, width: int, height: int) -> Text:
    """Draw utilization and memory, and power and temperature where the device reports them."""
    devices = state.devices
    if not devices:
        return dim_line("Device", "…")
    held_by = state.daemon.others if state.daemon is not None and height > 2 else ()
    others = [label_line("Held by", ", ".join(held_by))] if held_by else []
    if len(devices) > 1:
        return stack_lines(*_draw_cards(devices, width, height - len(others)), *others)
    (device,) = devices
    power = _format_power(device)
    if height < 2:
        busy = f"{device.name} {device.utilization:>4.0%}"
        return label_line("Device", f"{busy}  memory {_format_memory(device)}  {power}".rstrip())
    memory = f" {_format_memory(device)}"
    busy = f" {device.utilization:>4.0%}  {power}".rstrip()
    longest = max(len(memory), len(busy))
    return stack_lines(
        _draw_used("Busy", device.utilization, busy, width, longest),
        _draw_used("Memory", _compute_used_share(device), memory, width, longest),
        *others,
    )


def _draw_used(label: str, part: float, figures: str, width: int, longest: int = 0) -> Text:
    """Draw a meter and its figures. longest: characters of the longest figures among lines whose
    meters are to have one length."""
    room = max(width - LABEL_CELLS - max(len(figures), longest), 4)
    return label_line(label, thin(draw_meter(part, room)), figures)


def _draw_cards(cards: Sequence[DeviceSample], width: int, height: int) -> list[Text]:
    """Draw a line for each card, or one for all if `height` is 1. If some cards have no room, the
    last line counts them."""
    if height < 2:
        figures = "  ".join(
            f"{_name_card(card)} {card.utilization:.0%}, memory {_compute_used_share(card):.0%}"
            for card in cards
        )
        return [label_line("Device", figures)]
    shown = cards if len(cards) <= height else cards[: height - 1]
    lines = [_draw_card(card, width) for card in shown]
    if hidden := len(cards) - len(shown):
        lines.append(Text(f"and {hidden} more: nvidia-smi shows them", style=DIM))
    return lines


def _draw_card(card: DeviceSample, width: int) -> Text:
    """`GPU 1      ███▌     87%  20.1 GiB of 23.6 GiB  320/450 W  61 °C`."""
    figures = f" {card.utilization:>4.0%}  {_format_memory(card)}  {_format_power(card)}".rstrip()
    return _draw_used(_name_card(card), card.utilization, figures, width)


def _name_card(card: DeviceSample) -> str:
    return f"GPU {card.label}"[: LABEL_CELLS - 1]


def _compute_used_share(device: DeviceSample) -> float:
    return device.memory_used_bytes / max(device.memory_total_bytes, 1)


def _format_memory(device: DeviceSample) -> str:
    return f"{format_size(device.memory_used_bytes)} of {format_size(device.memory_total_bytes)}"


def _format_power(device: DeviceSample) -> str:
    """`512/700 W  61 °C`, without what the device does not report."""
    parts = []
    if device.power_w is not None:
        limit = f"/{device.power_limit_w:.0f}" if device.power_limit_w is not None else ""
        parts.append(f"{device.power_w:.0f}{limit} W")
    if device.temperature_c is not None:
        parts.append(f"{device.temperature_c:.0f} °C")
    return "  ".join(parts)
