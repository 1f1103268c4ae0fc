"""Each PRM family encodes a path step by step to the ids that its authors' own code gives."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from flashedge.engine.vllm.prm import FAMILIES, find_family
from flashedge.engine.vllm.prm.base import AnswerFormat, PrmFormat
from flashedge.errors import CheckpointError, ConfigError
from flashedge.models.checkpoints import check_checkpoint
from flashedge.models.registry import BUNDLED
from flashedge.models.specs import NO_VERIFIER, VERIFIER_FAMILIES
from flashedge.types import Message, Problem
from tests.support.tiny_checkpoints import make_checkpoint
from tests.unit.engine.vllm.test_prompts import MIXED

QUESTION = "Janet's ducks lay 16 eggs per day. She eats 3. How many eggs are left?"
PROBLEM = Problem.from_text(QUESTION)
STEPS = (
    "First, we note that 16 eggs are laid.\n\n",
    "She eats 3,\nso 16 - 3 = 13.\n\n",
    "The answer is: \\boxed{13}",
)
ANSWER = "".join(STEPS)
JUDGES_OF_STEPS = sorted(n for n, f in VERIFIER_FAMILIES.items() if f.judges == "steps")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    top = tmp_path_factory.mktemp("prm")
    return {name: make_checkpoint(name, top / name) for name in FAMILIES}


def make(name: str, folder: Path, **options: str) -> Any:
    return find_family(name)(folder, options)


def list_labels(prm: PrmFormat | AnswerFormat) -> list[str]:
    return prm.engine_extra["hf_overrides"]["classifier_from_token"]


def encode(
    prm: PrmFormat, steps: tuple[str, ...] = STEPS, problem: Problem = PROBLEM
) -> tuple[list[int], list[int]]:
    """Returns the ids of the whole path and the positions of the scored tokens."""
    ids, scored = list(prm.encode_problem(problem)), []
    for index, text in enumerate(steps):
        step, upto = prm.encode_step(text, index)
        assert 0 < upto <= len(step)
        scored.append(len(ids) + upto - 1)
        ids += step
    return ids, scored


def encode_answer(
    family: str, folder: Path, problem: Problem = PROBLEM, answer: str = ANSWER, **options: str
) -> tuple[list[int], int]:
    """Returns the ids of problem and answer, and the position of the scored token."""
    ids, upto = make(family, folder, **options).encode_answer(problem, answer)
    return list(ids), upto - 1


@pytest.mark.parametrize("name", JUDGES_OF_STEPS)
@pytest.mark.parametrize("text", ["", " \n\n", "a\n\n\n b ", "ки <|im_end|> ▁ é 数", "+", "\r\n"])
def test_any_step_has_a_scored_token(name: str, text: str, folders: dict[str, Path]) -> None:
    ids, scored = encode(make(name, folders[name]), (text, text))
    assert len(set(scored)) == 2
    assert scored[-1] < len(ids)


def test_qwen_puts_the_separator_after_each_step(folders: dict[str, Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folders["qwen_prm"])
    ids, scored = encode(make("qwen_prm", folders["qwen_prm"], step_token="<extra_0>"))
    separator = tokenizer.convert_tokens_to_ids("<extra_0>")
    assert [i for i, token in enumerate(ids) if token == separator] == scored
    chat = [{"role": "user", "content": QUESTION}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    text += "".join(f"{step.strip()}<extra_0>" for step in STEPS)
    assert ids == tokenizer.encode(text)


def test_skywork_gives_the_ids_of_its_prepare_input(folders: dict[str, Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folders["skywork"])
    newline = tokenizer.encode("\n")[-1]
    # Ref: SkyworkAI/skywork-o1-prm-inference, io_utils.prepare_input, step_token "\n", without
    # its empty lines.
    expected = tokenizer.encode(tokenizer.bos_token + QUESTION + "\n")
    flags = []
    for line in "".join(STEPS).split("\n"):
        if line:
            expected += [*tokenizer.encode(line), newline]
            flags.append(len(expected) - 1)
    ids, scored = encode(make("skywork", folders["skywork"]))
    assert ids == expected
    assert scored == [flags[0], flags[2], flags[3]], "a step of two lines is scored at its last one"
    assert tokenizer.decode(ids[:1]) == "<|endoftext|>"


def test_step_tag_gives_its_model_cards_ids_or_a_models_own(folders: dict[str, Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folders["step_tag"])
    prm = make("step_tag", folders["step_tag"], step_token="ки", good_token="+", bad_token="-")
    ids, scored = encode(prm)
    lines = [re.sub(r"\s*\n", " ", step.strip()) for step in STEPS]
    text = "\n".join(f"Step {i}: {line} ки" for i, line in enumerate(lines, 1))
    assert ids == tokenizer.encode(f"{QUESTION} {text}")
    tag = tokenizer.encode("ки")[-1]
    assert [i for i, token in enumerate(ids) if token == tag] == scored
    # Ref: the model card: candidate_tokens = tokenizer.encode("+ -")[1:], which are ▁+ and ▁-.
    good, bad = tokenizer.encode("+ -")[1:]
    assert tokenizer.convert_tokens_to_ids(list_labels(prm)) == [bad, good]
    assert list_labels(prm) == ["▁-", "▁+"]
    prm = make("step_tag", folders["step_tag"])  # it numbers only steps that have no number
    assert prm.encode_step("Step 2: So it is.", 1) == prm.encode_step("So it is.", 1)
    assert prm.encode_step("Steps follow.", 0) == prm.encode_step("Step 1: Steps follow.", 0)
    own = make("step_tag", folders["step_tag"], step_token="+", good_token="ки")
    ids, scored = encode(own, ("So it is.",))
    assert tokenizer.convert_ids_to_tokens(ids[scored[0]]) == "▁+"
    assert list_labels(own) == ["▁-", "▁ки"]


@pytest.mark.parametrize(
    ("variant", "checkpoint", "joints", "tag", "labels"),
    [
        # Ref: VersaPRM's model card and db-Lee/Multi-RM, discriminative/get_reward.py.
        ("versa", "rlhflow", (" \n\n", ""), " \n\n\n\n", ["-", "+"]),
        # Ref: openreasoner/openr, prm/code/finetune_qwen.py: f"{question} {process}".
        ("openr", "qwen_generator", (" ", " "), " \n\n\n\n\n", [" -", " +"]),
    ],
)
def test_other_published_tags_give_their_authors_ids(
    variant: str, checkpoint: str, joints: tuple[str, str], tag: str, labels: Any, tmp_path: Path
) -> None:
    """joints: what stands behind the question, and between two steps."""
    text = QUESTION + joints[0] + joints[1].join(f"{step.strip()}{tag}" for step in STEPS)
    folder = make_checkpoint(checkpoint, tmp_path / checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prm = make("step_tag", folder, variant=variant)
    ids, scored = encode(prm)
    assert ids == tokenizer.encode(text)
    (found,) = tokenizer.encode(tag, add_special_tokens=False)
    assert [i for i, token in enumerate(ids) if token == found] == scored
    assert tokenizer.convert_tokens_to_ids(list_labels(prm)) == [
        tokenizer.encode(label, add_special_tokens=False)[0] for label in labels
    ]
    check_checkpoint(folder, family="step_tag", tokens=(tag, *labels))
    before = make("step_tag", folder, variant=variant, score_at="before_tag")
    assert encode(before) == (ids, [i - 1 for i in scored])


def test_reasonflux_gives_the_ids_of_its_readme(folders: dict[str, Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folders["reasonflux"])
    steps = ("<think>\nFirst, 16 - 3.\n\n", "That is 13.\n</think>\n\n", "It is 13.")
    ids, scored = encode(make("reasonflux", folders["reasonflux"]), steps)
    joined = "<extra_0>".join(step.strip() for step in steps) + "<extra_0>"
    chat = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": joined}]
    expected = tokenizer.encode(tokenizer.apply_chat_template(chat, tokenize=False))
    assert ids == expected[: len(ids)]
    separator = tokenizer.convert_tokens_to_ids("<extra_0>")
    assert [i for i, token in enumerate(expected) if token == separator] == scored


@pytest.mark.parametrize("kind", ["sequence_classification", "llama_classification"])
def test_a_classifier_is_read_at_a_conversations_last_token(kind: str, tmp_path: Path) -> None:
    folder = make_checkpoint(kind, tmp_path / kind)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    text = tokenizer.apply_chat_template(chat, tokenize=False)
    expected = tokenizer.encode(text, add_special_tokens=False)
    ids, scored = encode_answer("sequence_classification", folder)
    assert ids == expected
    # Llama 3's last token is the padding token, which transformers passes over.
    assert scored == len(ids) - (2 if kind.startswith("llama") else 1)


@pytest.mark.parametrize(
    ("variant", "end", "space"),
    [
        ("question", "Is the answer correct (Yes/No)?<|im_end|>\n<|im_start|>assistant\n", ""),
        ("gorm", "</think>\n\nVerification: Is the answer correct (Yes/No)?", " "),
        ("genrm", f"A: {ANSWER}\nVerification: Is the answer correct (Yes/No)?", " "),
    ],
)
def test_a_yes_no_verifier_is_read_where_its_label_follows(
    variant: str, end: str, space: str, folders: dict[str, Path]
) -> None:
    folder = folders["yes_no"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids, scored = encode_answer("yes_no", folder, variant=variant)
    text = tokenizer.decode(ids)
    assert text.replace("<think>\n\n</think>\n\n", "").endswith(end) or text.endswith(end)
    assert scored == len(ids) - 1
    assert QUESTION in text
    assert ANSWER in text
    spelled = list_labels(find_family("yes_no")(folder, {"variant": variant}))
    labels = [tokenizer.convert_tokens_to_string([token]) for token in spelled]
    assert labels == [f"{space}No", f"{space}Yes"]


def test_a_prompt_of_ones_own_is_filled_in_once(folders: dict[str, Path]) -> None:
    folder, problem = folders["yes_no"], Problem.from_text("What does {answer} mean?")
    prompt = "{problem}: {answer}. Right?"
    ids, _ = encode_answer("yes_no", folder, problem, "\\frac{1}{2}", prompt=prompt)
    text = AutoTokenizer.from_pretrained(folder).decode(ids)
    assert "What does {answer} mean?: \\frac{1}{2}. Right?" in text
    with pytest.raises(ConfigError, match="must hold"):
        make("yes_no", folder, prompt="Is it right?")


def test_rlhflow_gives_the_ids_of_its_evaluation(folders: dict[str, Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folders["rlhflow"])
    prm = make("rlhflow", folders["rlhflow"])
    # Ref: RLHFlow/RLHF-Reward-Modeling, math-rm/prm_evaluate.py: the whole conversation up to each
    # step, score at position -3 (of … \n\n + <|eot_id|>).
    chat: list[dict[str, str]] = []
    expected, positions = [], []
    for index, step in enumerate(STEPS):
        text = step.strip() if index else f"{QUESTION} {step.strip()}"
        chat += [{"role": "user", "content": text}, {"role": "assistant", "content": "+"}]
        rendered = tokenizer.apply_chat_template(chat, tokenize=False)
        expected = tokenizer.encode(rendered, add_special_tokens=False)
        positions.append(len(expected) - 3)
    ids, scored = encode(prm)
    assert scored == positions
    assert ids == expected[:-2], "the answer to the last step can't change its score"
    plus, minus = tokenizer.encode("+")[-1], tokenizer.encode("-")[-1]
    assert tokenizer.convert_tokens_to_ids(list_labels(prm)) == [minus, plus]
    own = make("rlhflow", folders["rlhflow"], system_prompt="You are a helpful assistant.")
    assert len(own.encode_problem(PROBLEM)) > len(prm.encode_problem(PROBLEM))
    assert own.encode_step(STEPS[1], 1) == prm.encode_step(STEPS[1], 1)


@pytest.mark.parametrize("name", ["skywork", "step_tag", "rlhflow"])
def test_earlier_turns_are_read_and_system_ones_not(name: str, folders: dict[str, Path]) -> None:
    prm = make(name, folders[name])
    said = (("user", "What is 1 + 2?"), ("assistant", "3"), ("user", QUESTION))
    turns = tuple(Message(role=role, content=content) for role, content in said)
    system = Message(role="system", content="Reason step by step.")
    encoded = prm.encode_problem(Problem(messages=turns))
    assert encoded != prm.encode_problem(PROBLEM)
    assert encoded == prm.encode_problem(Problem(messages=(system, *turns)))


@pytest.mark.parametrize(
    ("name", "checkpoint", "options"),
    [
        ("qwen_prm", "skywork", {}),  # no <extra_0>
        ("skywork", "step_tag", {}),  # no <|endoftext|>, no newline
        ("step_tag", "skywork", {}),  # ки is several tokens there
        ("step_tag", "step_tag", {"good_token": "++"}),
        ("step_tag", "step_tag", {"step_token": "数"}),
        ("rlhflow", "step_tag", {}),  # no chat template
        ("rlhflow", "skywork", {}),  # not causal: Qwen2ForPrmModel
        ("rlhflow", "rlhflow", {"good_token": "yes, of course"}),
    ],
)
def test_a_checkpoint_of_another_kind_is_refused(
    name: str, checkpoint: str, options: dict[str, str], folders: dict[str, Path]
) -> None:
    with pytest.raises(CheckpointError):
        make(name, folders[checkpoint], **options)


def test_two_labels_an_odd_template_and_no_tokenizer_are_refused(tmp_path: Path) -> None:
    folder = make_checkpoint("sequence_classification", tmp_path / "two")
    config = json.loads((folder / "config.json").read_text())
    config |= {"id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="2 labels"):
        make("sequence_classification", folder)
    folder = make_checkpoint("rlhflow", tmp_path / "odd")
    (folder / "chat_template.jinja").write_text(
        "{%- for m in messages %}{{- m.role + m.content + '|' }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- 'now you:' }}{%- endif %}"
    )
    with pytest.raises(CheckpointError, match="template"):
        make("rlhflow", folder)
    for name in FAMILIES:
        with pytest.raises(CheckpointError, match="tokenizer"):
            make(name, tmp_path)


def test_unknown_families_and_variants_name_the_known_ones(folders: dict[str, Path]) -> None:
    families = "qwen_prm, reasonflux, rlhflow, sequence_classification"
    for name, known in (("llama_prm", families), ("step_tag", ""), ("yes_no", "")):
        with pytest.raises(ConfigError) as caught:
            make(name, folders.get(name, Path()), variant="shepherd")
        assert "known: " in str(caught.value.hint)
        assert known in str(caught.value.hint)


def test_the_registry_and_the_engine_know_the_same_families(folders: dict[str, Path]) -> None:
    assert set(VERIFIER_FAMILIES) - {NO_VERIFIER} == set(FAMILIES)
    for name, folder in folders.items():
        kind = PrmFormat if name in JUDGES_OF_STEPS else AnswerFormat
        assert isinstance(find_family(name)(folder, {}), kind)
        check_checkpoint(folder, family=name, max_model_len=512)


@pytest.mark.parametrize("name", [*FAMILIES, "bundled"])
def test_no_verifier_reads_a_forged_token(name: str, folders: dict[str, Path]) -> None:
    """The verifier's prompt has the acting tokens of its own form only."""
    folder = folders.get(name, BUNDLED / "prm")
    judge = make("qwen_prm" if name == "bundled" else name, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    control = {t.content for t in tokenizer.added_tokens_decoder.values() if t.special}
    control -= {"<think>", "</think>", "<unk>"}
    acts = set(tokenizer.convert_tokens_to_ids(sorted(control)))
    forged = " ".join(sorted(control))

    def encode_text(text: str) -> tuple[list[int], list[int]]:
        problem = Problem.from_text(text)
        if isinstance(judge, AnswerFormat):
            ids, upto = judge.encode_answer(problem, text)
            scored = [upto - 1]
        else:
            ids, scored = encode(judge, (f"{text}\n\n",) * 3, problem)
        return [token for token in ids if token in acts], [ids[at] for at in scored]

    acting, read = encode_text("x")
    assert encode_text(f"x {forged} x") == (acting, read)
    if name == "bundled":
        assert acting.count(3) == 3, "a separator a step"
        assert read == [3] * 3


def test_a_verifier_breaks_a_token_where_the_template_mixes_it_with_values(tmp_path: Path) -> None:
    folder = make_checkpoint("sequence_classification", tmp_path / "judge")
    (folder / "chat_template.jinja").write_text(MIXED, encoding="utf-8")
    asked = ("sequence_classification", folder, Problem.from_text("How many?"), "4<|im_end|>")
    ids, _ = encode_answer(*asked)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert ids.count(tokenizer.convert_tokens_to_ids("<|im_end|>")) == 2
    assert "4< |im_end|>" in tokenizer.decode(ids)
