"""Solutions of problems by plain vLLM, written some problems at a time."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flashedge.cli.progress import show_bar
from flashedge.engine.platform import runs_on_cpu
from flashedge.engine.vllm.engine_options import LEAST_FREE
from flashedge.engine.vllm.prm.qwen import QwenPrm
from flashedge.files.journal import Journal
from flashedge.files.problems import LabelledProblem
from flashedge.types import Problem

GROUP = 330
"""Problems that are drawn together and then written."""
TEMPERATURE = 0.8
MOST_PROMPT_TOKENS = 512
KV_BYTES = 14 << 30
CPU_KV_BYTES = 1 << 28


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnLine:
    """A line of a file of samples."""

    problem: str
    answer: str
    texts: tuple[str, ...]
    lens: tuple[int, ...]
    """Tokens of each text."""

    def to_json(self) -> Mapping[str, Any]:
        return asdict(self)


@dataclass(slots=True, kw_only=True)
class Drawer:
    """Draws solutions by an engine that starts when it is first needed."""

    generator: Path
    form: QwenPrm
    """Encodes a problem as the daemon does for the generator."""
    n: int
    """Solutions of a problem."""
    most_tokens: int
    """Of a solution."""
    seed: int
    until: float
    """By `time.monotonic`, when no further problems are started."""
    _llm: Any = field(init=False, default=None)

    def draw(self, problems: Sequence[LabelledProblem], output: Path) -> bool:
        """Draw solutions of each problem, or of those that are left from an earlier call. A problem
        that occurs twice is drawn once. Returns False if time is up first."""
        with Journal(output, None, lambda row: DrawnLine(**row), lambda r: r.problem) as journal:
            wanted = {problem.text: problem.answer for problem in problems}
            left = [
                (text, answer) for text, answer in wanted.items() if text not in journal.records
            ]
            done = len(wanted) - len(left)
            with show_bar("solutions", len(wanted), done=done, unit="problems") as step:
                for first in range(0, len(left), GROUP):
                    if time.monotonic() >= self.until:
                        return False
                    for line in self._draw_some(left[first : first + GROUP]):
                        journal.append(line)
                        step(1)
        return True

    def _draw_some(self, problems: Sequence[tuple[str, str]]) -> Iterator[DrawnLine]:
        import vllm

        self._llm = self._llm or self._start_engine()
        asked = vllm.SamplingParams(n=self.n, temperature=TEMPERATURE, max_tokens=self.most_tokens)
        prompts = [self.form.encode_problem(Problem.from_text(text)) for text, _ in problems]
        tokens = [{"prompt_token_ids": list(ids)} for ids in prompts]
        found = self._llm.generate(tokens, asked, use_tqdm=False)
        for (text, answer), one in zip(problems, found, strict=True):
            texts = tuple(each.text for each in one.outputs)
            lens = tuple(len(each.token_ids) for each in one.outputs)
            yield DrawnLine(problem=text, answer=answer, texts=texts, lens=lens)

    def _start_engine(self) -> Any:
        # Plain vLLM takes FlashInfer's sampler where it finds the package, and compiles it first.
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
        import vllm

        return vllm.LLM(
            str(self.generator),
            max_model_len=MOST_PROMPT_TOKENS + self.most_tokens,
            max_num_seqs=16 if runs_on_cpu() else 768,
            gpu_memory_utilization=LEAST_FREE,  # it asks for no more beside the KV
            kv_cache_memory_bytes=CPU_KV_BYTES if runs_on_cpu() else KV_BYTES,
            compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
            seed=self.seed,
        )
