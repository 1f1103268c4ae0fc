"""`flashedge simulate` as a user meets it."""

import json

import pytest

from tests.support.cli_rig import Cli


def test_the_ladder_as_json(cli: Cli) -> None:
    done = cli.ends(0, "", "simulate", "--n", "4", "--problems", "1", "--workload", "amc", "--json")
    told = json.loads(done.out)
    assert (told["simulated"], told["lengths"], told["gpu"]) == (True, "smooth", "rtx4090")
    assert (told["device"]["overhead_s"], told["device"]["sequence_s"]) == (0.003, 80e-6)
    assert (told["n"], told["problems"]) == (4, 1)
    names = [row["rung"] for row in told["rungs"]]
    assert names == ["stock", "suffix", "+P", "+P+M", "+P+M+S", "+lookahead"]
    for row in told["rungs"]:
        assert row["same_trees"] is True
        assert row["latency_s"] >= row["generator_s"] + row["verifier_s"] - 1e-9
        assert row["generator_peak_bytes"] > 0
    stock, suffix, *_, ahead, _ = told["rungs"]
    low, high = suffix["gain_range"]
    assert low < suffix["goodput_gain"] < high
    ranges = [stock["gain_range"], suffix["gain_over_suffix_range"]]
    assert (suffix["gain_over_suffix"], ranges) == (1, [[1, 1], [1, 1]])
    low, high = ahead["gain_over_suffix_range"]
    assert low < high
    assert ahead["gain_range"] != [low, high]


def test_the_table_says_that_it_is_simulated_and_by_what(cli: Cli) -> None:
    asked = ("--gpu", "RTX-3090", "--strategy", "dvts-4", "--problems", "1")
    done = cli.ends(0, "", "simulate", *asked)
    assert done.out.startswith("SIMULATED: math-1.5b+skywork-1.5b, dvts n=4 on GeForce RTX 3090")
    assert "+ KV split (M)" in done.out
    assert "Assumed overheads: 3 ms a step + 80 us a sequence." in done.out
    assert "from 1 ms a step + 0 us a sequence to 9 ms a step + 240 us a sequence" in done.out
    assert "It is not a measurement." in done.out


def test_a_strategy_without_a_verifier(cli: Cli) -> None:
    few = ("-n", "4", "--problems", "1", "--json")
    done = cli.ends(0, "", "simulate", "--strategy", "self_consistency", *few)
    assert {row["verifier_s"] for row in json.loads(done.out)["rungs"]} == {0}
    # the bundled pair needs no entry in the registry
    cli.ends(0, "", "simulate", "--pair", "bundled", *few)


@pytest.mark.parametrize(
    ("flags", "said", "choice"),
    [
        (("--gpu", "rtx9999"), "no card 'rtx9999' can be simulated", "known: rtx4090"),
        (("--pair", "math-1.5b"), "there is no pair 'math-1.5b'", "did you mean"),
        (("--workload", "gre"), "there is no workload 'gre'", "known: aime, amc, math, gsm8k"),
        (("--pair", "math-7b+prm-7b"), "does not fit rtx4090", "doctor --fit math-7b+prm-7b"),
        (("--memory", "0.3"), "0 MiB are left", "doctor --fit"),
    ],
)
def test_one_clear_error(cli: Cli, flags: tuple[str, ...], said: str, choice: str) -> None:
    done = cli.ends(2, said, "simulate", *flags)
    assert (done.out, choice in done.err) == ("", True)
