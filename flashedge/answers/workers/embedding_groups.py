"""Groups open-ended answers by meaning. The model runs in a worker process, not in the daemon.

This module, run by `python -m` with a model folder and a threshold, is the worker (see
`line_worker`). It answers `{"texts": [...]}` by `{"groups": [...]}`, which holds for each text the
index of its group's first text.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashedge.answers.grouping import WordGroups
from flashedge.answers.numbers import find_numbers, numbers_conflict
from flashedge.answers.pairwise import group_by_complete_links
from flashedge.answers.workers.line_worker import LineWorker, serve
from flashedge.config import Config
from flashedge.errors import CheckpointError, ConfigError
from flashedge.models.folders import resolve_model
from flashedge.models.registry import find_embedder

if TYPE_CHECKING:
    from flashedge.answers.workers.embedding import Embedder

LIMIT_S, LIMIT_PER_TEXT_S = 30.0, 0.5
"""A worker counts as hung after LIMIT_S plus LIMIT_PER_TEXT_S for each text. Chosen by hand: a
tenth may be too short on a busy machine; with ten times as much a run waits minutes for it."""
MAX_TRIES = 2  # for one question; the second has a new worker
MODEL_HINT = (
    "set it (or FLASHEDGE_CLUSTERS_MODEL) to the folder of a sentence-embedding model, or leave it"
    " out to group by words"
)
FALLBACK = "open-ended answers are grouped by their words"

log = logging.getLogger(__name__)


class EmbeddingGroups:
    """Groups answers whose vectors have a high cosine.

    The groups depend only on the set of texts. Any two members have a cosine of at least the
    threshold, and the first member in the order given names the group. A further answer may split a
    group, and another processor may round differently. If the worker can't start, or hangs or dies
    twice over one question, the answers are grouped by their words and the log says so.
    """

    def __init__(
        self, folder: Path, threshold: float, *, command: Sequence[str] | None = None
    ) -> None:
        """folder: of `resolve_model`. threshold: the least cosine. command starts the worker;
        None runs this module."""
        module = "flashedge.answers.workers.embedding_groups"
        own = (sys.executable, "-P", "-m", module, str(folder), str(threshold))
        environ = {"CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
        self.worker = LineWorker("embedding", command or own, fallback=FALLBACK, environ=environ)
        self._lock = asyncio.Lock()
        self.num_failures = 0
        """See `answers.grouping.TextGroups`."""

    async def group(self, answers: Sequence[str | None]) -> tuple[str | None, ...]:
        texts = sorted({a for a in answers if a is not None})
        if len(texts) < 2:
            return tuple(answers)
        homes = await self._ask(texts)
        if homes is None:
            self.num_failures += 1
            return tuple(await WordGroups().group(answers))
        home = dict(zip(texts, homes, strict=True))
        first: dict[int, str] = {}
        return tuple(None if a is None else first.setdefault(home[a], a) for a in answers)

    async def close(self) -> None:
        async with self._lock:
            await self.worker.stop()

    async def _ask(self, texts: list[str]) -> list[int] | None:
        """The worker's groups. None if it can't start or keeps failing."""
        for _ in range(MAX_TRIES):
            async with self._lock:
                if not await self.worker.start():
                    return None
                reply = await self.worker.ask(
                    {"texts": texts}, LIMIT_S + LIMIT_PER_TEXT_S * len(texts)
                )
            if reply is not None:
                return list(reply["groups"])
        log.warning(
            "the embedding worker hung or died while grouping %d texts; %s", len(texts), FALLBACK
        )
        return None


def build_embedding_groups(config: Config) -> EmbeddingGroups | None:
    """Groups by the model that `clusters_model` names, None without a model. Raises CheckpointError
    if the model can't be used, ConfigError if a package is missing."""
    spec = find_embedder(config)
    if spec is None:
        return None
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"clusters_model needs {package}, which is not installed",
                hint="pip install 'flashedge[embeddings]'",
                param="clusters_model",
            )
    try:
        folder = resolve_model(spec, config)
    except CheckpointError as error:
        raise CheckpointError(
            f"clusters_model: {error}", hint=error.hint or MODEL_HINT, param="clusters_model"
        ) from error
    return EmbeddingGroups(folder, config.clusters_threshold)


def group_texts(embedder: Embedder, texts: list[str], threshold: float) -> tuple[int, ...]:
    """texts: (n,), all different, sorted -> (n,) index of the first text of each one's group.

    Any two texts of a group have a cosine of at least `threshold` and numbers that do not conflict.
    """
    cosines = embedder.compute_cosines(texts)
    named = [find_numbers(text) for text in texts]
    near = (cosines >= threshold).triu(diagonal=1).nonzero().tolist()
    similar = [
        (cosines[i, j].item(), i, j) for i, j in near if not numbers_conflict(named[i], named[j])
    ]
    return group_by_complete_links(len(texts), similar)


def _prepare() -> Callable[[Any], Mapping[str, Any]]:
    from flashedge.answers.workers.embedding import Embedder

    embedder, threshold = Embedder(Path(sys.argv[1])), float(sys.argv[2])
    embedder.embed(["warm up"])
    return lambda question: {"groups": group_texts(embedder, question["texts"], threshold)}


if __name__ == "__main__":
    serve(_prepare)
