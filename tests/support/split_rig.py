"""A cost curve for the tests of the KV split."""

from dataclasses import dataclass

from flashedge.scheduling.costs import BatchTime


@dataclass(frozen=True)
class Whole:
    """Whole seconds, so that ties are exact: fixed + each * batch."""

    fixed: int
    each: int

    def decode_at(self, context: float) -> BatchTime:
        return lambda batch: self.fixed + self.each * batch

    def prefill_at(self, context: float, new: float) -> BatchTime:
        return lambda batch: self.fixed + self.each * batch * int(new)
