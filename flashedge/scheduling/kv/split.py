"""How the KV memory is divided between generator and verifier.

A linear search over the verifier's share, everything left being the generator's. Or both get all
of it in turn, the other's KV waiting in host memory (offload), when that is faster.
Ref: arXiv 2509.00195 §4.3 (Eq. 1, dual strategy). Departures: docs/adr/0006.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import compress
from math import inf

from flashedge.errors import ConfigError
from flashedge.scheduling.kv.stages import EngineCost, Option, Stage, Workload

ROUNDING = 1e-12  # times that differ by less are equal


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLink:
    """Where KV goes to wait. bytes_per_s: one way, to pinned memory if that is used;
    capacity_bytes: room for one engine's KV; switch_s: pause, release and resume of one phase
    switch; margin: share of a level that turns have to gain to be taken, counted as their cost."""

    bytes_per_s: float
    capacity_bytes: int
    switch_s: float = 0.0
    margin: float = 0.0

    def seconds(self, kv_bytes: int) -> float:
        """To save so many bytes and to restore them; infinite where there is no room."""
        return 2 * kv_bytes / self.bytes_per_s if kv_bytes <= self.capacity_bytes else inf


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSplit:
    """Bytes of both engines, and how many paths each is taken to compute at once; generate_s,
    verify_s, transfer_s: predicted seconds of a level. offload: each has its bytes only while the
    other's KV is away; what a side keeps is then saved and restored (generator_saved,
    verifier_saved), else dropped."""

    generator_bytes: int
    verifier_bytes: int
    decode_batch: int
    prefill_batch: int
    generate_s: float
    verify_s: float
    transfer_s: float = 0.0
    offload: bool = False
    generator_saved: bool = False
    verifier_saved: bool = False

    @property
    def seconds(self) -> float:
        return self.generate_s + self.verify_s + self.transfer_s


def best_split(
    load: Workload,
    *,
    generator: EngineCost,
    verifier: EngineCost,
    kv_bytes: int,
    link: HostLink | None = None,
) -> KvSplit:
    """The fastest way to spend `kv_bytes` on a level of `load`; of equally fast ones that with the
    largest decode batch. Where all paths of both fit, they share what is left in proportion: means
    stand for heavy tails. Without `link` nothing is offloaded.

    Raises ConfigError when the memory does not hold one path.
    """
    decode = _Side(Stage(generator, load, decodes=True), kv_bytes)
    prefill = _Side(Stage(verifier, load, decodes=False), kv_bytes)
    if not (decode.options and prefill.options):
        raise _too_little(decode, prefill, load, kv_bytes, link)
    found = [] if link is None else [_in_turn(decode, prefill, kv_bytes, link)]
    if (split := _shared(decode, prefill, kv_bytes)) is not None:
        found.insert(0, split)  # first among equals
    if not found:
        raise _too_little(decode, prefill, load, kv_bytes, link)
    return min(found, key=lambda split: split.seconds)


def halves(kv_bytes: int, *, generator: EngineCost, verifier: EngineCost) -> KvSplit:
    """Half and half, but for an engine that needs more to hold a request of full length. Nothing is
    predicted."""
    share = max(kv_bytes // 2, verifier.least_bytes)
    share = min(share, kv_bytes - generator.least_bytes)
    return KvSplit(
        generator_bytes=kv_bytes - share,
        verifier_bytes=share,
        decode_batch=generator.max_batch,
        prefill_batch=verifier.max_batch,
        generate_s=0.0,
        verify_s=0.0,
    )


def predicted(
    split: KvSplit,
    load: Workload,
    *,
    generator: EngineCost,
    verifier: EngineCost,
    link: HostLink | None = None,
) -> float | None:
    """Seconds of a level of `load` under a standing split; None if a path does not fit, or the
    split offloads and there is no `link` any more."""
    decode = _Side(Stage(generator, load, decodes=True), split.generator_bytes)
    prefill = _Side(Stage(verifier, load, decodes=False), split.verifier_bytes)
    if not (decode.options and prefill.options) or (split.offload and link is None):
        return None
    if link is not None and split.offload:
        return _in_turn(decode, prefill, split.generator_bytes, link).seconds
    return decode.seconds(split.generator_bytes) + prefill.seconds(split.verifier_bytes)


def settled(
    last: KvSplit | None,
    new: KvSplit,
    *,
    last_s: float | None,
    move_s: float = 0.0,
    least_gain: float = 0.02,
) -> KvSplit:
    """Hysteresis: `last` unless a level under `new` is faster by `least_gain`, a share of it, and
    by as much as the move takes.

    last_s: what a level takes now under `last` (see `predicted`), None: it no longer fits.
    """
    if last is None or last_s is None:
        return new
    return new if last_s - new.seconds >= max(least_gain * new.seconds, move_s) else last


def refitted(
    split: KvSplit,
    load: Workload,
    *,
    generator: EngineCost,
    verifier: EngineCost,
    link: HostLink | None = None,
) -> KvSplit:
    """A standing split with the batches and the times that it has for another load, which it must
    hold one path of; `link` must be there if it offloads."""
    decode = _Side(Stage(generator, load, decodes=True), split.generator_bytes)
    prefill = _Side(Stage(verifier, load, decodes=False), split.verifier_bytes)
    if split.offload:
        assert link is not None, "it offloads"
        return _in_turn(decode, prefill, split.generator_bytes, link)
    return replace(
        split,
        decode_batch=decode.stage.largest_batch(split.generator_bytes),
        prefill_batch=prefill.options[-1].batch,
        generate_s=decode.seconds(split.generator_bytes),
        verify_s=prefill.seconds(split.verifier_bytes),
    )


class _Side:
    """A stage, and its options within all of the memory."""

    def __init__(self, stage: Stage, kv_bytes: int) -> None:
        self.stage = stage
        self.options = stage.options(kv_bytes)
        self._from = [option.kv_bytes for option in self.options]

    @property
    def bends(self) -> list[int]:
        """Bytes between which `seconds` falls evenly."""
        return [*self._from, self.stage.whole]

    def option(self, kv_bytes: int) -> Option:
        """The last that fits: there must be one."""
        return self.options[bisect_right(self._from, kv_bytes) - 1]

    def seconds(self, kv_bytes: int) -> float:
        """Of the level, with what of the live tree's KV fits into so much memory."""
        _, _, kept_s, lost_s = self.options[bisect_right(self._from, kv_bytes) - 1]
        return kept_s + self.stage.missing(kv_bytes) * (lost_s - kept_s)


def _shared(decode: _Side, prefill: _Side, kv_bytes: int) -> KvSplit | None:
    """The linear search: every share of the verifier at which one of both begins to fare
    differently; between two of them the time changes evenly, so none is faster. None: they do
    not fit beside each other."""
    least, most = prefill.options[0].kv_bytes, kv_bytes - decode.options[0].kv_bytes
    if least > most:
        return None
    whole = decode.stage.whole, prefill.stage.whole
    spare = kv_bytes - sum(whole)
    if spare >= 0:  # all fits: what neither is known to need is headroom
        share = whole[1] + spare * whole[1] // sum(whole)
    else:
        shares = {*prefill.bends, *[kv_bytes - bend for bend in decode.bends]}
        share, best_s = least, inf
        for other in sorted(shares):  # the first of equals leaves the generator most
            if least <= other <= most:
                seconds = decode.seconds(kv_bytes - other) + prefill.seconds(other)
                if seconds < best_s:
                    share, best_s = other, seconds * (1 - ROUNDING)
    return KvSplit(
        generator_bytes=kv_bytes - share,
        verifier_bytes=share,
        decode_batch=decode.stage.largest_batch(kv_bytes - share),
        prefill_batch=prefill.option(share).batch,
        generate_s=decode.seconds(kv_bytes - share),
        verify_s=prefill.seconds(share),
    )


def _in_turn(decode: _Side, prefill: _Side, kv_bytes: int, link: HostLink) -> KvSplit:
    """All memory to each in its phase. KV that is worth less than its way is dropped, not moved."""
    sides = decode, prefill
    kept_s = [side.seconds(kv_bytes) for side in sides]
    move_s = [link.seconds(min(kv_bytes, side.stage.whole)) for side in sides]
    lost_s = [side.options[-1].lost_s for side in sides]
    saved = [kept + move <= lost for kept, move, lost in zip(kept_s, move_s, lost_s, strict=True)]
    stage_s = [
        kept if save else lost for kept, lost, save in zip(kept_s, lost_s, saved, strict=True)
    ]
    moving_s = sum(compress(move_s, saved)) + 2 * link.switch_s
    return KvSplit(
        generator_bytes=kv_bytes,
        verifier_bytes=kv_bytes,
        decode_batch=decode.stage.largest_batch(kv_bytes),
        prefill_batch=prefill.options[-1].batch,
        generate_s=stage_s[0],
        verify_s=stage_s[1],
        transfer_s=moving_s + link.margin * (sum(stage_s) + moving_s),
        offload=True,
        generator_saved=saved[0],
        verifier_saved=saved[1],
    )


def _too_little(
    decode: _Side, prefill: _Side, load: Workload, kv_bytes: int, link: HostLink | None
) -> ConfigError:
    one = decode.stage.bytes_for(1), prefill.stage.bytes_for(1)
    least = max(one) if link else sum(one)
    return ConfigError(
        f"{kv_bytes} bytes of KV memory do not hold one path of "
        f"{load.context_tokens + load.step_tokens} tokens: {one[0]} bytes for the generator, "
        f"{one[1]} for the verifier",
        hint=f"give at least {least} bytes, fewer tokens or a smaller pair",
        param="kv_bytes",
    )
