"""A job of the simulated generator, which writes tokens: a request or a draft of the next step."""

from flashedge.engine.base import ExtendRequest
from flashedge.scheduling.speculation.drafts import Draft
from flashedge.search.step_rules import StepEnd
from scripts.lab.sim.engine_loop import Job
from scripts.lab.sim.model import Reader
from scripts.lab.sim.scheduler import SimSequence


class WritingJob(Job):
    """Writes a token of the model after each step."""

    def __init__(
        self,
        sequence: SimSequence,
        reader: Reader,
        asked: ExtendRequest | Draft,
        end: StepEnd,
        start: int,
    ) -> None:
        """start: tokens of the sequence before the step."""
        self.sequence = sequence
        self.reader = reader
        self._seed = asked.seed if asked.sampling.temperature > 0 else None
        self._end = end
        self._start = start

    @property
    def room(self) -> int:
        """Tokens that the step may still have."""
        most = min(self._end.max_tokens, self._end.room)
        return most - (len(self.sequence.tokens) - self._start)

    def ends_step(self, previous: int, token: int) -> bool:
        return self._end.find_reason(previous, token, 0) is not None

    def _write(self) -> tuple[int, float]:
        """The next token and its log-probability."""
        token, logprob = self.reader.draw(self._seed)
        self.reader.read(token)
        self.sequence.append(token)
        return token, logprob
