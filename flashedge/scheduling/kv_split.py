"""How the KV memory is divided between generator and verifier.

A linear search over the verifier's share, everything left being the generator's. Or both get all
of it in turn, the other's KV waiting in host memory (offload), when that is faster.
Ref: arXiv 2509.00195 §4.3 (Eq. 1, dual strategy). Departures: docs/adr/0006.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from flashedge.errors import ConfigError
from flashedge.scheduling.kv_stages import EngineCost, Option, Stage, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLink:
    """Where KV goes to wait. bytes_per_s: one way, to pinned memory if that is used;
    capacity_bytes: room for one engine's KV; switch_s: pause, release and resume of one phase
    switch."""

    bytes_per_s: float
    capacity_bytes: int
    switch_s: float = 0.0

    def ways(self, options: Iterable[Option]) -> Iterator[tuple[Option, float]]:
        """The options that it allows, each with the seconds to save and restore what it keeps."""
        for option in options:
            if not option.kept:
                yield option, 0.0
            elif option.kv_bytes <= self.capacity_bytes:
                yield option, 2 * option.kv_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSplit:
    """Bytes and batch limits of both engines; generate_s, verify_s, transfer_s: predicted seconds
    of a level. offload: each has its bytes only while the other's KV is away; what a side keeps is
    then saved and restored (generator_saved, verifier_saved), else dropped."""

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
    return decode.options[-1].seconds + prefill.options[-1].seconds


def settled(
    last: KvSplit | None, new: KvSplit, *, last_s: float | None, least_gain: float = 0.1
) -> KvSplit:
    """Hysteresis: `last` unless a level under `new` is faster by `least_gain`, a share of it.

    last_s: what a level takes now under `last` (see `predicted`), None: it no longer fits.
    """
    if last is None or last_s is None or last_s >= new.seconds * (1 + least_gain):
        return new
    return last


def refitted(
    split: KvSplit, load: Workload, *, generator: EngineCost, verifier: EngineCost
) -> KvSplit:
    """A standing split with the batch limits and the times that it has for another load, which it
    must hold one path of."""
    decode = _Side(Stage(generator, load, decodes=True), split.generator_bytes)
    prefill = _Side(Stage(verifier, load, decodes=False), split.verifier_bytes)
    return replace(
        split,
        decode_batch=decode.stage.largest_batch(split.generator_bytes),
        prefill_batch=prefill.options[-1].batch,
        generate_s=decode.options[-1].seconds,
        verify_s=prefill.options[-1].seconds,
        generator_saved=split.offload and decode.options[-1].kept,
        verifier_saved=split.offload and prefill.options[-1].kept,
    )


class _Side:
    """A stage, and its options within all of the memory."""

    def __init__(self, stage: Stage, kv_bytes: int) -> None:
        self.stage = stage
        self.options = stage.options(kv_bytes)


def _shared(decode: _Side, prefill: _Side, kv_bytes: int) -> KvSplit | None:
    """The linear search: the verifier's options, each with the best that the rest allows."""
    generating = decode.options
    best: tuple[Option, Option] | None = None
    best_s = float("inf")
    i = len(generating) - 1
    for scoring in prefill.options:  # rising bytes: the first of equals leaves the most
        while i >= 0 and generating[i].kv_bytes + scoring.kv_bytes > kv_bytes:
            i -= 1
        if i < 0:
            break
        if generating[i].seconds + scoring.seconds < best_s:
            best = generating[i], scoring
            best_s = generating[i].seconds + scoring.seconds
    if best is None:
        return None
    generate, verify = best
    spare = kv_bytes - generate.kv_bytes - verify.kv_bytes
    more = 0
    if generate.kept and verify.kept:  # all fits: what neither is known to need is headroom
        more = spare * verify.kv_bytes // (generate.kv_bytes + verify.kv_bytes)
    rest = kv_bytes - verify.kv_bytes - more
    return KvSplit(
        generator_bytes=rest,
        verifier_bytes=verify.kv_bytes + more,
        decode_batch=decode.stage.largest_batch(rest),
        prefill_batch=verify.batch,
        generate_s=generate.seconds,
        verify_s=verify.seconds,
    )


def _in_turn(decode: _Side, prefill: _Side, kv_bytes: int, link: HostLink) -> KvSplit:
    """All memory to each in its phase. KV that is worth less than its way is dropped, not moved."""
    (generate, out_s), (verify, back_s) = (
        min(link.ways(side.options), key=lambda way: (way[0].seconds + way[1], -way[0].batch))
        for side in (decode, prefill)
    )
    return KvSplit(
        generator_bytes=kv_bytes,
        verifier_bytes=kv_bytes,
        decode_batch=decode.stage.largest_batch(kv_bytes),
        prefill_batch=verify.batch,
        generate_s=generate.seconds,
        verify_s=verify.seconds,
        transfer_s=out_s + back_s + 2 * link.switch_s,
        offload=True,
        generator_saved=generate.kept,
        verifier_saved=verify.kept,
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
        mend=f"give at least {least} bytes, fewer tokens or a smaller pair",
        param="kv_bytes",
    )
