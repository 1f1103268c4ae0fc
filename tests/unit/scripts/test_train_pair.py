"""The bundled pair: its problems, checker, faults and models."""

import random
import re
from itertools import pairwise

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import torch

from scripts.lab.evaluation.measure import Chain, ProblemRecord
from scripts.train_pair import problems as data
from scripts.train_pair.assemble import fit_logistic
from scripts.train_pair.batches import IGNORE, Encoder, make_lessons
from scripts.train_pair.checker import check_steps, is_correct, split_steps
from scripts.train_pair.families import FAMILIES, MEASURED
from scripts.train_pair.families.base import LIMIT, LONG, Move, Spec
from scripts.train_pair.families.story import CONFUSED
from scripts.train_pair.families.words import SMALL
from scripts.train_pair.faults import make_chain
from scripts.train_pair.judgement import judge
from scripts.train_pair.model import Generator, ModelConfig, Verifier, set_look_back
from scripts.train_pair.prm import build_verifier
from scripts.train_pair.teacher import teach
from scripts.train_pair.tokenizer import PROBE, STEP, format_prompt, train_tokenizer
from scripts.train_pair.trunk import TRUNK, Trunk, start_trunk
from tests.support.paths import ROOT

MOVES = (Move("1", "finds", "+", ("12",)), Move("2", "sells", "-", ("10",)))
TWO_DAYS = Spec(family="story", text="", moves=MOVES, start=30)
TINY = ModelConfig(hidden=32, layers=2, heads=1, ffn=32)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    """The pair's encoder, with a freshly trained tokenizer."""
    return Encoder(train_tokenizer())


def test_heldout_texts_do_not_occur_in_training() -> None:
    ranges = [data.TRAIN_SEEDS, data.CALIBRATION_SEEDS, data.HELDOUT_SEEDS, data.EASY_SEEDS]
    ranges.sort(key=lambda seeds: seeds.start)
    assert all(left.stop <= right.start for left, right in pairwise(ranges))
    training = {data.make_problem(seed, data.TRAINING).text for seed in range(20_000)}
    assert not training & {problem.text for problem in data.make_problems(data.HELDOUT_SEEDS, 500)}
    assert data.make_problem(7) == data.make_problem(7)


def draw(count: int, difficulty: data.Difficulty = data.STANDARD) -> list[data.Problem]:
    return list(data.make_problems(data.CALIBRATION_SEEDS, count, difficulty))


@pytest.mark.parametrize("difficulty", [data.EASY, data.STANDARD, data.Difficulty(min_steps=2)])
def test_solutions_are_right_and_values_have_two_digits(difficulty: data.Difficulty) -> None:
    rng = random.Random(0)
    for problem in draw(300, difficulty):
        steps = data.solve(problem.spec, rng)
        assert all(check.so_far for check in check_steps(problem.spec, steps))
        assert is_correct(problem, "\n\n".join(steps))
        assert 10 <= int(problem.answer) <= 99
        assert len(steps) == problem.num_steps


@pytest.mark.parametrize("family", sorted({*data.EVERYDAY.families}))
def test_everyday_problems_have_one_right_solution_which_the_teacher_writes(family: str) -> None:
    difficulty = data.Difficulty(min_steps=1, families=(family,))
    texts = set()
    for problem in draw(300, difficulty):
        steps = teach(random.Random(problem.seed), problem.spec)
        assert all(check.so_far for check in check_steps(problem.spec, steps)), problem.text
        assert is_correct(problem, "\n\n".join(steps))
        assert 0 <= int(problem.answer) <= LIMIT
        texts.add(problem.text)
    assert len(texts) > 280


def test_what_a_plain_story_tells_is_what_its_steps_count() -> None:
    plain = data.Difficulty(min_steps=1, check=0.0, families=("plain",))
    told = re.compile(r"\D* ha[sd] (\d+) [^\d.]* (won|wins|buys|lost|loses|lends|sells) (\d+)\D*")
    seen = 0
    for problem in draw(1500, plain):
        words = told.fullmatch(problem.text)
        if words and len(problem.spec.moves) == 1:
            sign = 1 if words[2] in ("won", "wins", "buys") else -1
            assert int(problem.answer) == int(words[1]) + sign * int(words[3]), problem.text
            seen += 1
    assert seen > 5


def test_of_two_owners_the_question_names_the_one_whose_number_is_the_answer() -> None:
    pairs = data.Difficulty(min_steps=1, check=0.0, families=("pairs",))
    first_step = re.compile(r"both: (.+) a has \d+, (.+) b has \d+\. .*\. .+ ([ab]) has \d+\. \3 ")
    seen = 0
    for problem in draw(600, pairs):
        if words := first_step.match(data.solve(problem.spec)[0].lower()):
            asked, other = (words[1], words[2]) if words[3] == "a" else (words[2], words[1])
            end = problem.text.lower()[-len(asked) - 60 :].rpartition("how many")[2]
            assert asked in end, problem.text
            assert other not in end or other in asked, problem.text
            seen += 1
    assert seen > 250


def test_a_step_after_a_skipped_one_is_recognized_by_its_words() -> None:
    steps = (("more", "+", "5"), ("fewer", "-", "9"), ("more", "+", "7"))
    moves = tuple(Move("", f"{{n}} {word}", op, ("=", n)) for word, op, n in steps)
    spec = Spec(family="plain", text="", moves=moves, start=10)
    checks = check_steps(spec, ["9 fewer. 10-9=1.", "7 more. 1+7=8."])
    assert [check.right for check in checks] == [False, True]


def test_the_checker_finds_the_first_wrong_character_and_judges_by_the_stated_values() -> None:
    steps = ["Day 1: finds 12. 30+12=43.", "Day 2: sells 10. 43-10=33."]
    steps.append("Day 2 was the last. The answer is \\boxed{33}.")
    checks = check_steps(TWO_DAYS, steps)
    assert [(c.right, c.so_far) for c in checks] == [(False, False), (True, False), (True, False)]
    assert checks[0].deviation == steps[0].index("43") + 1


def test_the_checker_refuses_skips_early_answers_cuts_and_misreadings() -> None:
    answer = "Day 0 was the last. The answer is \\boxed{30}."
    early = ("Day 2: sells 10. 30-10=20.", answer, "Day 1: finds 12. 30+12=4", "nonsense")
    for step in (*early, "Day 1: finds 10. 30+10=40.", "Day 1: sells 12. 30-12=18."):
        assert not check_steps(TWO_DAYS, [step])[-1].right, step
    whole = data.solve(TWO_DAYS)
    assert not check_steps(TWO_DAYS, [*whole, whole[-1]])[-1].right  # nothing follows the answer


def test_a_chain_right_so_far_that_answers_has_the_right_answer() -> None:
    rng, wrong = random.Random(1), 0
    for problem in draw(500):
        steps = make_chain(rng, problem.spec, 0.15)
        good = check_steps(problem.spec, steps)[-1].so_far and "\\boxed" in steps[-1]
        wrong += not good
        assert not good or is_correct(problem, "\n\n".join(steps))
    assert wrong > 150


def test_a_solution_is_checked_where_the_problem_asks_for_it() -> None:
    problems = draw(100)
    asked = [problem for problem in problems if problem.text.endswith(data.CHECK_IT)]
    assert 10 <= len(asked) <= 45
    for problem in problems:
        steps = data.solve(problem.spec)
        checks = [step for step in steps if step.startswith("Check:")]
        assert len(checks) == (problem in asked)
        if checks:
            garbled = [*steps[:-2], steps[-2].replace("=", "=1", 1), steps[-1]]
            last = check_steps(problem.spec, garbled)[-2:]
            assert [check.right for check in last] == [False, True]
            assert not check_steps(problem.spec, [*steps[:-2], steps[-1]])[-1].right


def test_the_teacher_errs_in_long_problems_alone_and_always_reaches_an_answer() -> None:
    rng = random.Random(2)
    short = {"min_steps": 1, "max_steps": LONG - 1}
    for name, sizes in [(n, {}) for n in (*MEASURED, "lookups")] + [(n, short) for n in FAMILIES]:
        difficulty = data.Difficulty(**sizes, families=(name,))
        checks = []
        for problem in draw(60, difficulty):
            chain = teach(rng, problem.spec)
            assert "\\boxed" in chain[-1]
            checks += check_steps(problem.spec, chain)
        wrong = sum(not check.right for check in checks) / len(checks)
        assert wrong == 0 if sizes else 0.02 < wrong < 0.25, (name, sizes)


def test_no_word_of_the_readme_is_misread() -> None:
    readme = (ROOT / "README.md").read_text()
    assert not [word for word in CONFUSED if word in readme]


def test_some_lessons_end_in_a_probe_for_the_last_stated_value(encoder: Encoder) -> None:
    make = make_lessons(encoder, 0, data.TRAINING)
    texts = [encoder.backend.decode(make(index).ids) for index in range(200)]
    probed = [text for text in texts if PROBE in text]
    assert 10 <= len(probed) <= 60
    for text in probed:
        assert text.endswith("}")
        shown, guess = text.split(PROBE)
        number = guess[:-1]
        spelled = SMALL[int(number)] if int(number) < len(SMALL) else number
        assert number == "0" or number in shown or spelled in shown


def test_digits_and_the_blank_line_are_single_tokens() -> None:
    tokenizer = train_tokenizer()
    text = "37+24=61.\n\nSo 5."
    pieces = [tokenizer.decode([index]) for index in tokenizer.encode(text)]
    assert "".join(pieces) == text
    assert "\n\n" in pieces
    assert all(len(p.strip()) == 1 for p in pieces if any(c.isdigit() for c in p))
    turns = [{"role": "user", "content": "x"}]
    assert format_prompt("x") == tokenizer.apply_chat_template(
        turns, tokenize=False, add_generation_prompt=True
    )


def test_labelled_rows_mark_every_step_from_the_fault_on(encoder: Encoder) -> None:
    problem = data.make_problem(3)
    steps = data.solve(problem.spec)
    row = encoder.encode_chain(problem.text, problem.spec, [steps[0], "nonsense", *steps[1:]])
    marks = [label for label in row.step if label != IGNORE]
    assert marks == [1] + [0] * len(steps)
    separator = train_tokenizer().convert_tokens_to_ids(STEP)
    assert {row.ids[i] for i, label in enumerate(row.step) if label != IGNORE} == {separator}
    solution = encoder.encode_solution(problem.text, steps).ids
    written = encoder.backend.decode(solution[len(encoder.encode_prompt(problem.text)) :])
    assert split_steps(written) == steps


def test_incremental_decoding_equals_a_whole_pass() -> None:
    torch.manual_seed(0)
    model = Generator(TINY).eval()
    ids = torch.randint(4, 400, (2, 12))
    cache = model.model.create_cache(2, 16)
    counts = torch.tensor([5, 3])
    with torch.no_grad():
        model.model.extend(ids[:, :5], counts, cache)
        rest = torch.stack([ids[0, 5:9], ids[1, 3:7]])
        states = model.model.extend(rest, torch.tensor([4, 4]), cache)
        whole = model.model(ids)
    assert torch.allclose(states[0], whole[0, 5:9], atol=1e-5)
    assert torch.allclose(states[1], whole[1, 3:7], atol=1e-5)


def test_look_back_attends_to_the_previous_token() -> None:
    model = Verifier(TINY)
    layer = model.model.layers[0]
    set_look_back(layer, 1)
    captured: list[torch.Tensor] = []
    layer.self_attn.o_proj.register_forward_pre_hook(lambda _, args: captured.append(args[0]))
    with torch.no_grad():
        layer.self_attn.v_proj.weight.copy_(torch.eye(32))
        x = torch.randn(1, 10, 32)
        layer.self_attn(x, model.model.cos[:10], model.model.sin[:10], None)
    assert torch.allclose(captured[0][0, 1:], x[0, :-1], atol=0.1)


def test_the_assembled_verifier_keeps_the_trunk_and_remembers_surprise(encoder: Encoder) -> None:
    torch.manual_seed(0)
    trunk = Trunk(TRUNK).eval()
    rows = []
    for seed in range(8):
        problem = data.make_problem(seed, data.EASY)
        chain = make_chain(random.Random(seed), problem.spec, 0.3)
        rows.append(encoder.encode_chain(problem.text, problem.spec, chain))
    verifier = build_verifier(trunk, rows, encoder.end, seed=0).eval()
    ids = torch.tensor([rows[0].ids])
    with torch.no_grad():
        narrow = trunk.model.run(trunk.model.embed_tokens(ids), 0, TRUNK.layers)
        wide = verifier.model.run(verifier.model.embed_tokens(ids), 0, TRUNK.layers)
        scores = verifier(ids).softmax(-1)
    assert torch.allclose(wide[..., : TRUNK.hidden], narrow, atol=0.05, rtol=0.05)
    assert torch.isfinite(scores).all()


def test_a_trunk_begins_with_the_generator_and_levelled_logits(encoder: Encoder) -> None:
    torch.manual_seed(1)
    generator = Generator(TRUNK).eval()
    problems = list(data.make_problems(data.TRAIN_SEEDS, 16, data.EASY))
    rows = [encoder.encode_chain(p.text, p.spec, data.solve(p.spec)) for p in problems]
    trunk = start_trunk(generator, encoder, rows).eval()
    ids = torch.tensor([rows[0].ids])
    seen = ids.clone()
    seen[ids == encoder.separator] = encoder.blank
    order = list(range(TRUNK.vocab))
    order[encoder.separator], order[encoder.blank] = encoder.blank, encoder.separator
    with torch.no_grad():
        found, expected = trunk(ids), generator(seen)[..., order]
    assert torch.allclose(found.softmax(-1), expected.softmax(-1), atol=1e-4)
    answer = torch.tensor(rows[0].target)
    level, before = (x.logsumexp(-1)[0, answer].pow(2).mean() for x in (found, expected))
    assert level < before / 2


def test_the_logistic_fit_finds_the_slope() -> None:
    x = torch.linspace(-4, 4, 4000)
    draws = torch.rand(4000, generator=torch.Generator().manual_seed(0))
    slope, bias = fit_logistic(x, (draws < (2 * x - 1).sigmoid()).float())
    assert (slope, bias) == pytest.approx((2, -1), abs=0.3)


def test_the_report_compares_the_scores_with_the_checker() -> None:
    problem = data.make_problem(data.HELDOUT_SEEDS[0])
    right = data.solve(problem.spec)
    wrong = [*right[:1], *right[2:]]  # a step is skipped: nothing after it is right so far
    chains = [
        Chain(text="\n\n".join(steps), answer="0", right=True, scores=scores)
        for steps, scores in ((right, (1.0,) * len(right)), (wrong, (1.0,) + (0.0,) * 9))
    ]
    known = {"id": problem.id, "family": problem.family, "steps": problem.num_steps}
    record = ProblemRecord(**known, index=0, greedy=chains[0], chains=tuple(chains), beams={})  # type: ignore[arg-type]
    report = judge({problem.id: problem}, [record])
    assert report["expected calibration error (steps)"] == 0.0
    assert report["step AUC (pooled, no gate)"] == 1.0
    assert [fault["share"] for fault in report["commonest errors"]] == [1.0]
    assert report["steps right given what was stated"] < 1.0
