"""Choose how the KV memory is divided between generator and verifier.

The engines can share the memory: then a linear search over the verifier's share finds the fastest
division. Or they can take turns with all of it, while the other engine's KV is in host memory
(offload). The faster of the two is chosen.

Ref: arXiv 2509.00195 §4.3 (Eq. 1, dual strategy). Departures: docs/adr/0006.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import compress
from math import inf
from operator import attrgetter

from flashedge.errors import ConfigError
from flashedge.scheduling.kv.stages import BatchChoice, EngineCost, Stage, Workload

ROUNDING = 1e-12
"""Times that differ by a smaller share than this count as equal."""
LEAST_GAIN = 0.02
"""Share of a level's time that a new division must save. Chosen by hand: with a tenth, every level
would move memory; with ten times as much, the division would hardly follow the load."""


class EngineRole(StrEnum):
    GENERATOR = "generator"
    VERIFIER = "verifier"

    @property
    def other(self) -> EngineRole:
        return EngineRole.VERIFIER if self is EngineRole.GENERATOR else EngineRole.GENERATOR


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLink:
    """The connection to the host memory that holds offloaded KV."""

    bytes_per_s: float
    """Speed in one direction, to pinned memory if that is used."""
    capacity_bytes: int
    """Host memory for the KV of one engine."""
    switch_s: float = 0.0
    """Seconds to pause one engine and resume the other when there is nothing to move."""

    def estimate_round_trip(self, kv_bytes: int) -> float:
        """Seconds to save and restore `kv_bytes`. Infinite if they don't fit."""
        return 2 * kv_bytes / self.bytes_per_s if kv_bytes <= self.capacity_bytes else inf


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSplit:
    """A division of the KV memory. Its seconds are those of a level, or 0 without a prediction."""

    generator_bytes: int
    verifier_bytes: int
    decode_batch: int
    """Paths that the generator is assumed to decode at once."""
    prefill_batch: int
    """Paths that the verifier is assumed to score at once."""
    generate_s: float
    verify_s: float
    transfer_s: float = 0.0
    offload: bool = False
    """Whether the engines alternate: each has its bytes only while the other is offloaded."""
    generator_saved: bool = False
    """With `offload`: whether the generator's KV is saved and restored. Otherwise it is dropped."""
    verifier_saved: bool = False

    @property
    def seconds(self) -> float:
        return self.generate_s + self.verify_s + self.transfer_s

    def has_same_bytes(self, other: KvSplit) -> bool:
        read = attrgetter("generator_bytes", "verifier_bytes", "offload")
        return bool(read(self) == read(other))


@dataclass(frozen=True, slots=True, kw_only=True)
class KvMemory:
    """The memory that two engines divide. Without a link nothing is offloaded."""

    generator: EngineCost
    verifier: EngineCost
    kv_bytes: int
    link: HostLink | None = None

    def split_evenly(self) -> KvSplit:
        """Give each engine half, or more where one request of full length needs more."""
        most = self.kv_bytes - self.generator.least_bytes
        share = min(max(self.kv_bytes // 2, self.verifier.least_bytes), most)
        return KvSplit(
            generator_bytes=self.kv_bytes - share,
            verifier_bytes=share,
            decode_batch=self.generator.max_batch,
            prefill_batch=self.verifier.max_batch,
            generate_s=0.0,
            verify_s=0.0,
        )

    def choose_split(self, load: Workload) -> KvSplit:
        """Find the fastest split for a level. Among equals prefer sharing to alternating, and then
        the largest decode batch. Raises ConfigError if the memory does not hold one path."""
        decode, prefill = self._plan_stages(load, self.kv_bytes, self.kv_bytes)
        splits: list[KvSplit] = []
        if decode.choices and prefill.choices:
            if (split := _divide(decode, prefill, self.kv_bytes)) is not None:
                splits.append(split)  # of two equally fast ways `min` takes the first
            if self.link is not None:
                splits.append(_alternate(decode, prefill, self.kv_bytes, self.link))
        if not splits:
            raise self._build_error(decode, prefill, load)
        return min(splits, key=lambda split: split.seconds)

    def decide_split(self, load: Workload, current: KvSplit, move_s: float = 0.0) -> KvSplit:
        """Keep the bytes of `current` unless another split makes a level faster by `LEAST_GAIN` and
        by `move_s`, the seconds of the move. If the memory does not hold one path of each engine,
        it is divided evenly."""
        try:
            new = self.choose_split(load)
        except ConfigError:
            return self.split_evenly()
        kept = self.refit_split(current, load)
        if kept is None or kept.seconds - new.seconds >= max(LEAST_GAIN * new.seconds, move_s):
            return new
        return kept

    def refit_split(self, split: KvSplit, load: Workload) -> KvSplit | None:
        """The same division with the batches and seconds of another load. None if a path does not
        fit, or if the split offloads without a link."""
        decode, prefill = self._plan_stages(load, split.generator_bytes, split.verifier_bytes)
        if not (decode.choices and prefill.choices):
            return None
        if split.offload:
            if self.link is None:
                return None
            return _alternate(decode, prefill, split.generator_bytes, self.link)
        return replace(
            split,
            decode_batch=decode.stage.find_largest_batch(split.generator_bytes),
            prefill_batch=prefill.choices[-1].batch,
            generate_s=decode.estimate_seconds(split.generator_bytes),
            verify_s=prefill.estimate_seconds(split.verifier_bytes),
        )

    def _plan_stages(
        self, load: Workload, decode_bytes: int, prefill_bytes: int
    ) -> tuple[_Side, _Side]:
        decode = _Side(Stage(self.generator, load, decodes=True), decode_bytes)
        return decode, _Side(Stage(self.verifier, load, decodes=False), prefill_bytes)

    def _build_error(self, decode: _Side, prefill: _Side, load: Workload) -> ConfigError:
        one = decode.stage.count_bytes(1), prefill.stage.count_bytes(1)
        least = max(one) if self.link else sum(one)
        return ConfigError(
            f"{self.kv_bytes} bytes of KV memory do not hold one path of "
            f"{load.context_tokens + load.step_tokens} tokens: {one[0]} bytes for the generator, "
            f"{one[1]} for the verifier",
            hint=f"give at least {least} bytes, fewer tokens or a smaller pair",
            param="kv_bytes",
        )


class _Side:
    """One engine's stage of a level, and its choices with a given amount of memory."""

    def __init__(self, stage: Stage, kv_bytes: int) -> None:
        self.stage = stage
        self.choices = stage.list_choices(kv_bytes)
        self._choice_bytes = [choice.kv_bytes for choice in self.choices]

    @property
    def bends(self) -> list[int]:
        """Bytes between which `estimate_seconds` is linear."""
        return [*self._choice_bytes, self.stage.whole_bytes]

    def find_choice(self, kv_bytes: int) -> BatchChoice:
        """The last choice that fits. There must be one."""
        return self.choices[bisect_right(self._choice_bytes, kv_bytes) - 1]

    def estimate_seconds(self, kv_bytes: int) -> float:
        """Seconds of the level, with as much of the live tree's KV as fits into `kv_bytes`."""
        _, _, kept_s, lost_s = self.find_choice(kv_bytes)
        return kept_s + self.stage.estimate_missing(kv_bytes) * (lost_s - kept_s)


def _divide(decode: _Side, prefill: _Side, kv_bytes: int) -> KvSplit | None:
    """Search every verifier share at which one engine's choice changes, since the time is linear
    between two of these. None if one path of each engine does not fit."""
    least, most = prefill.choices[0].kv_bytes, kv_bytes - decode.choices[0].kv_bytes
    if least > most:
        return None
    whole = prefill.stage.whole_bytes
    total = decode.stage.whole_bytes + whole
    spare = kv_bytes - total
    if spare >= 0:  # all paths fit; the spare memory is for steps that are longer than the mean
        share = whole + spare * whole // total
    else:
        shares = {*prefill.bends, *[kv_bytes - bend for bend in decode.bends]}
        share, best_s = least, inf
        for other in sorted(shares):  # the first of equals leaves the generator most
            if least <= other <= most:
                seconds = decode.estimate_seconds(kv_bytes - other)
                seconds += prefill.estimate_seconds(other)
                if seconds < best_s:
                    share, best_s = other, seconds * (1 - ROUNDING)
    return KvSplit(
        generator_bytes=kv_bytes - share,
        verifier_bytes=share,
        decode_batch=decode.stage.find_largest_batch(kv_bytes - share),
        prefill_batch=prefill.find_choice(share).batch,
        generate_s=decode.estimate_seconds(kv_bytes - share),
        verify_s=prefill.estimate_seconds(share),
    )


def _alternate(decode: _Side, prefill: _Side, kv_bytes: int, link: HostLink) -> KvSplit:
    """Give all memory to each engine while it works. KV that is cheaper to compute than to move is
    dropped."""
    sides = decode, prefill
    kept_s = [side.estimate_seconds(kv_bytes) for side in sides]
    move_s = [link.estimate_round_trip(min(kv_bytes, side.stage.whole_bytes)) for side in sides]
    lost_s = [side.choices[-1].lost_s for side in sides]
    saved = [kept + move <= lost for kept, move, lost in zip(kept_s, move_s, lost_s, strict=True)]
    stage_s = [
        kept if save else lost for kept, lost, save in zip(kept_s, lost_s, saved, strict=True)
    ]
    return KvSplit(
        generator_bytes=kv_bytes,
        verifier_bytes=kv_bytes,
        decode_batch=decode.stage.find_largest_batch(kv_bytes),
        prefill_batch=prefill.choices[-1].batch,
        generate_s=stage_s[0],
        verify_s=stage_s[1],
        transfer_s=sum(compress(move_s, saved)) + 2 * link.switch_s,
        offload=True,
        generator_saved=saved[0],
        verifier_saved=saved[1],
    )
