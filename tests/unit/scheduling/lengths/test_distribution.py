"""The log-t distribution agrees with scipy's Student t; requests know their prompts."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from flashedge.scheduling.lengths.distribution import LogT
from flashedge.scheduling.lengths.outputs import LengthRequest
from tests.support.paths import ROOT

TOKENS = np.array([0.5, 1.0, 20.0, 90.0, 150.0, 400.0, 3000.0, 32768.0])
SHARES = np.array([1e-6, 0.01, 0.1, 0.5, 0.9, 0.99, 1 - 1e-6])


@pytest.mark.parametrize("ours", [LogT(4.6, 0.5), LogT(4.6, 0.1, 2.2)], ids=repr)
def test_log_t_agrees_with_scipy(ours: LogT) -> None:
    student = stats.t(ours.nu, ours.mu, ours.sigma)
    survival = student.logsf(np.log(TOKENS))
    np.testing.assert_allclose(ours.log_survival(TOKENS), survival, rtol=1e-7)
    np.testing.assert_allclose(ours.inverse_survival(SHARES), np.exp(student.isf(SHARES)), 1e-7)
    assert ours.log_survival(np.array([-5.0, 0.0, np.inf])).tolist() == [0, 0, -np.inf]
    assert ours.log_survival(np.array(90.0)).shape == ()
    assert len({ours, eval(repr(ours))}) == 1


def test_equal_prompts_have_one_key() -> None:
    def key(**fields: object) -> bytes:
        return LengthRequest(pair="p", max_tokens=9, **fields).prompt_key  # type: ignore[arg-type]

    assert key(text="a") == key(text="a", prompt_ids=(1, 2))
    assert key(prompt_ids=(1, 2)) == key(prompt_ids=(1, 2))
    assert len({key(text="a"), key(text="b"), key(prompt_ids=(1,)), key(prompt_ids=(2,))}) == 4
    assert LengthRequest(pair="p", max_tokens=9, prompt_ids=(7, 7)).num_prompt_tokens == 2
    assert LengthRequest(pair="p", max_tokens=9, prompt_tokens=5).num_prompt_tokens == 5


def test_the_scheduler_does_not_import_the_slow_parts_of_scipy() -> None:
    code = (
        "import sys, flashedge.scheduling.lengths.history, flashedge.scheduling.programs.active;"
        "assert not {'scipy.stats', 'torch', 'asyncio', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
