"""Predicts lengths from the runs before, group by group, from the largest to the smallest.

    all runs → the pair and the strategy → prompts about as long → the client's own → this prompt

Each group has a log-t distribution, whose prior is the distribution of the group around it. A group
with few runs is therefore predicted much like the group around it, and one with many by its own.
In the groups each run counts once, however many outputs it drew; a prompt that is known by itself
counts every output. The prediction is a function of the runs in their order, and nothing else.

Beyond the paper, which names online adaptation as future work. Ref: arXiv 2604.00499 App. E, G.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import log, sqrt

from flashedge.runtime.lengths.history.cell import Cell
from flashedge.runtime.lengths.history.drift import Drift
from flashedge.runtime.lengths.history.explanation import NO_RUNS, explain_groups
from flashedge.runtime.lengths.history.groups import (
    ALL,
    GroupKey,
    iter_weights,
    list_groups,
    name_kind,
)
from flashedge.runtime.lengths.history.prompt_spread import PromptSpread
from flashedge.runtime.lengths.history.prompts import Prompts
from flashedge.runtime.lengths.history.settings import HistorySettings
from flashedge.scheduling.lengths.base import LengthDistribution
from flashedge.scheduling.lengths.observed import OutputLengths
from flashedge.scheduling.lengths.posterior import (
    LOCATION_VARIANCE,
    LOG_SIGMA_VARIANCE,
    Posterior,
    Prior,
    fit_posterior,
)
from flashedge.scheduling.lengths.request import FinishedOutputs, LengthRequest

FIRST_PRIOR = Prior(mu=log(512), mu_sd=2.0, sigma=0.5, log_sigma_sd=0.5)
"""Of the group of all runs. It says next to nothing, and only matters for the first few runs."""
UNKNOWN_SD = 2.0
"""Standard deviation of mu for a prompt's outputs that are fitted by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What is known of one group."""

    words: str
    """Which runs it holds."""

    runs: float
    """How many, less what is forgotten."""

    fit: Posterior

    is_of_prompts: bool = False
    """Whether it holds only prompts of about one length."""


@dataclass(slots=True)
class _Kind:
    """What the runs of one pair and strategy have in common."""

    spread: PromptSpread = field(default_factory=PromptSpread)
    drift: Drift = field(default_factory=Drift)

    @property
    def correction(self) -> float:
        return self.drift.find_correction(self.spread.between)


class HistoryPredictor:
    """Implements `LengthPredictor`."""

    def __init__(self, settings: HistorySettings | None = None) -> None:
        self._settings = settings or HistorySettings()
        self._keep = 0.5 ** (1 / self._settings.half_life_runs)
        self._cells: OrderedDict[GroupKey, Cell] = OrderedDict()
        self._kinds: OrderedDict[GroupKey, _Kind] = OrderedDict()
        self._prompts = Prompts(self._settings)
        self._fits: dict[GroupKey, tuple[int, Prior, Posterior]] = {}

    # ------------------------------------------------------------ predicting

    def predict(self, requests: Sequence[LengthRequest]) -> list[LengthDistribution | None]:
        """See `LengthPredictor`. None before the first run has ended."""
        return [self._predict(request) for request in requests]

    def explain(self, request: LengthRequest) -> str:
        """See `LengthPredictor`."""
        groups = self._fit_groups(list_groups(request, self._settings))
        if not groups:
            return NO_RUNS
        cell = self._prompts.find(request)
        return explain_groups(
            [(group.words, group.runs, group.fit) for group in groups],
            fit=self._fit_request(request, groups[-1]),
            own_runs=0.0 if cell is None else cell.runs,
            correction=self._get_kind(request).correction,
        )

    def _predict(self, request: LengthRequest) -> LengthDistribution | None:
        groups = self._fit_groups(list_groups(request, self._settings))
        return self._fit_request(request, groups[-1]).distribution if groups else None

    def _fit_request(self, request: LengthRequest, group: Group) -> Posterior:
        """Fit a request from its smallest group, and from the runs of its prompt if it has any."""
        kind = self._get_kind(request)
        fit = replace(group.fit, mu=group.fit.mu + kind.correction)
        cell = self._prompts.find(request)
        if cell is None:
            return fit
        return fit_posterior(cell.get_points(), kind.spread.build_prior(fit.mu))

    def _get_kind(self, request: LengthRequest) -> _Kind:
        return self._kinds.get(name_kind(request)) or _Kind()

    def _fit_groups(self, keys: Sequence[GroupKey]) -> list[Group]:
        """Fit those groups that have a run. keys: each group within the one before."""
        found: list[Group] = []
        prior = FIRST_PRIOR
        for key in keys:
            cell = self._cells.get(key)
            if cell is not None:
                fit = self._fit_cell(key, cell, prior)
                prior = self._build_prior(fit)
                words = key.describe(self._settings)
                is_of_prompts = key.bucket is not None
                found.append(
                    Group(words=words, runs=cell.runs, fit=fit, is_of_prompts=is_of_prompts)
                )
        return found

    def _fit_cell(self, key: GroupKey, cell: Cell, prior: Prior) -> Posterior:
        known = self._fits.get(key)
        if known is not None and known[:2] == (cell.version, prior):
            return known[2]
        fit = fit_posterior(cell.get_points(), prior)
        self._fits[key] = cell.version, prior, fit
        return fit

    def _build_prior(self, fit: Posterior) -> Prior:
        """Build the prior of a group within the fitted one."""
        runs = self._settings.parent_runs
        return Prior(
            mu=fit.mu,
            mu_sd=sqrt(fit.mu_variance + LOCATION_VARIANCE * fit.sigma**2 / runs),
            sigma=fit.sigma,
            log_sigma_sd=sqrt(LOG_SIGMA_VARIANCE / runs),
        )

    # ------------------------------------------------------------ learning

    def learn(self, finished: FinishedOutputs) -> None:
        """See `LengthPredictor`."""
        request, lengths = finished.request, finished.lengths
        if lengths.num_outputs <= 0:
            return
        groups = self._fit_groups(list_groups(request, self._settings))
        if groups and lengths.ended:
            self._learn_kind(name_kind(request), lengths, groups[-1].fit.mu)
        for key, weight in iter_weights(request, self._settings):
            cell = self._cells.setdefault(key, Cell())
            self._cells.move_to_end(key)
            share = weight / lengths.num_outputs
            cell.add(lengths, weight=weight, share=share, keep=self._keep**weight)
        self._prompts.add(request, lengths)
        while len(self._cells) > self._settings.max_cells:
            dropped, _ = self._cells.popitem(last=False)
            self._fits.pop(dropped, None)

    def _learn_kind(self, key: GroupKey, lengths: OutputLengths, group_mu: float) -> None:
        """Learn from the difference between a run and its group."""
        kind = self._kinds.setdefault(key, _Kind())
        self._kinds.move_to_end(key)
        cell = Cell()
        cell.add(lengths, weight=1.0, share=1.0, keep=1.0)
        expected = group_mu + kind.correction
        prior = replace(kind.spread.build_prior(expected), mu_sd=UNKNOWN_SD)
        own = fit_posterior(cell.get_points(), prior)
        if len(lengths.ended) > 1:
            kind.spread.add(own, expected, len(lengths.ended), self._keep)
        kind.drift.add(own.mu - group_mu)
        if len(self._kinds) > self._settings.max_cells:
            self._kinds.popitem(last=False)

    # ------------------------------------------------------------ telling

    def list_groups(self) -> list[Group]:
        """Fit every group but those of single clients: the largest first, then by their prompts."""
        keys = sorted((key for key in self._cells if key.client is None), key=_sort_key)
        return [self._fit_groups(_list_above(key))[-1] for key in keys]

    @property
    def num_prompts(self) -> int:
        """Prompts that are known by themselves."""
        return len(self._prompts)

    @property
    def num_bins(self) -> int:
        """Bins of all groups: what the memory of the predictor grows with, beside the prompts."""
        return sum(cell.num_bins for cell in self._cells.values())


def _list_above(key: GroupKey) -> list[GroupKey]:
    """List the groups around a group, and the group itself as the last."""
    above = [ALL, GroupKey(pair=key.pair, kind=key.kind), key]
    return list(dict.fromkeys(above))


def _sort_key(key: GroupKey) -> tuple[str, str, int]:
    return key.pair or "", key.kind or "", -1 if key.bucket is None else key.bucket
