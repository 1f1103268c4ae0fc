"""Groups open-ended answers through the worker; the daemon itself loads no model."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from flashedge.answers.groups import group_by_first_match
from flashedge.answers.words import are_alike
from flashedge.answers.workers.line_worker import LineWorker
from flashedge.config import Config
from flashedge.errors import CheckpointError, ConfigError
from flashedge.models.folders import resolve_model
from flashedge.models.registry import find_embedder

LIMIT_S = 30.0
LIMIT_A_TEXT_S = 0.5
TRIES = 2
MEND = (
    "set it (or FLASHEDGE_CLUSTERS_MODEL) to the folder of a sentence-embedding model, or leave it"
    " out to group by words"
)
INSTEAD = "open-ended answers are grouped by their words"

log = logging.getLogger(__name__)


class EmbeddingGroups:
    """Groups answers whose vectors are near each other.

    Which answers go together is a function of the set of their texts: neither the order they came
    in nor how often one was given changes it. Any two of a group have a cosine of at least the
    threshold. A group is named by its first member in the order given. What is not promised: that
    a group stays whole when further answers come (a nearer partner may take a member away), or
    the same bits on another processor. When the worker dies twice over one question, or can't
    start, that question is answered by likeness of words and the log says so.
    """

    def __init__(
        self, folder: Path, threshold: float, *, command: Sequence[str] | None = None
    ) -> None:
        """folder: checked by `registry.resolve_model`; threshold: least cosine, in [0, 1]."""
        own = (
            sys.executable,
            "-P",
            "-m",
            "flashedge.answers.workers.embedding_worker",
            str(folder),
            str(threshold),
        )
        self._worker = LineWorker(
            "embedding",
            command or own,
            without=INSTEAD,
            environ={"CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"},
        )
        self._lock = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """Of the worker, if one runs."""
        return self._worker.pid

    async def group(self, answers: Sequence[str | None]) -> tuple[str | None, ...]:
        """answers: (n,) -> (n,) the first member of each one's group, None for no answer."""
        texts = sorted({a for a in answers if a is not None})
        if len(texts) < 2:
            return tuple(answers)
        homes = await self._ask(texts)
        if homes is None:
            return group_by_first_match(answers, are_alike)
        home = dict(zip(texts, homes, strict=True))
        first: dict[int, str] = {}
        return tuple(None if a is None else first.setdefault(home[a], a) for a in answers)

    async def close(self) -> None:
        """End the worker. The next question would start another."""
        async with self._lock:
            await self._worker.stop()

    async def _ask(self, texts: list[str]) -> list[int] | None:
        """The worker's groups; None when it can't tell."""
        for _ in range(TRIES):
            async with self._lock:
                if not await self._worker.start():
                    return None
                reply = await self._worker.ask(
                    {"texts": texts}, LIMIT_S + LIMIT_A_TEXT_S * len(texts)
                )
            if reply is not None:
                return list(reply["groups"])
        log.warning("the embedding worker hung or died over %d texts; %s", len(texts), INSTEAD)
        return None


def embedding_groups(config: Config) -> EmbeddingGroups | None:
    """What `[clusters] model` asks for, None where it asks for nothing.

    Raises CheckpointError naming what is wrong with the model, ConfigError without the extra.
    """
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
            f"[clusters] model: {error}", hint=error.hint or MEND, param="clusters_model"
        ) from error
    return EmbeddingGroups(folder, config.clusters_threshold)
