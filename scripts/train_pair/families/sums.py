"""Sums as people ask for them: `What is 12 + 7?`"""

import random

from scripts.train_pair.families.base import Move
from scripts.train_pair.families.plain import LAST, Draft, draw_gain, draw_loss, draw_value
from scripts.train_pair.families.telling import spell

ASKING = (
    *("What is {}?", "What is {}?", "What is {}?", "What's {}?", "How much is {}?", "Compute {}."),
    *("{} = ?", "{} =", "{}", "{}=?", "Calculate {}.", "Work out {}.", "What does {} make?"),
    *(
        "Solve {}.",
        "Tell me what {} is.",
        "What do you get for {}?",
        "how much is {}",
        "Add up: {}",
    ),
    *(
        "Find {}.",
        "Evaluate {}",
        "Result of {}?",
        "What is the value of {}?",
        "What is {} equal to?",
    ),
)
SIGNS = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}


def draw_sum(rng: random.Random) -> Draft:
    """Draw a sum."""
    chance = rng.random()
    if chance < 0.12:
        return _draw_words(rng)
    if chance < 0.24:
        return _draw_product(rng)
    value = rng.choice((draw_value(rng), rng.randint(0, 20)))
    numbers, ops = [value], list[str]()
    for _ in range(rng.choice((1, 1, 1, 1, 2, 2, 3, 4))):
        op = rng.choice("+-") if value > 1 else "+"
        number = draw_gain(rng, value) if op == "+" else draw_loss(rng, value)
        value += number if op == "+" else -number
        numbers.append(number)
        ops.append(op)
    if rng.random() < 0.05:
        numbers[-1], ops[-1] = 0, rng.choice("+-")
    moves = [Move("", "", ops[0], (str(numbers[0]), str(numbers[1])))]
    moves += [
        Move("", "", op, (LAST, str(number)))
        for op, number in zip(ops[1:], numbers[2:], strict=True)
    ]
    return Draft(_ask(rng, _write(rng, numbers, ops)), tuple(moves))


def _write(rng: random.Random, numbers: list[int], ops: list[str]) -> str:
    style = rng.random()
    text = str(numbers[0])
    for op, number in zip(ops, numbers[1:], strict=True):
        if style < 0.6:
            text += f" {op} {number}"
        elif style < 0.78:
            text += f"{op}{number}"
        else:
            text += f" {SIGNS[op]} {number}"
    return text


def _ask(rng: random.Random, text: str) -> str:
    return rng.choice(ASKING).replace("{}", text)


def _draw_words(rng: random.Random) -> Draft:
    """A sum told in words."""
    a = draw_value(rng)
    kind = rng.randrange(6)
    if kind == 0:
        b = draw_loss(rng, a)
        text = rng.choice(
            (
                f"Subtract {b} from {a}.",
                f"Take {b} from {a}.",
                f"Take {b} away from {a}.",
                f"If you take {b} away from {a}, what is left?",
                f"What is {b} less than {a}?",
                f"What is left if you take {b} from {a}?",
                f"What is the difference between {a} and {b}?",
                f"How much more is {a} than {b}?",
            )
        )
        return Draft(text, (Move("", "", "-", (str(a), str(b))),))
    if kind == 1:
        text = rng.choice((f"What is half of {2 * a}?", f"Half of {2 * a}?"))
        return Draft(text, (Move("", "", "/", (str(2 * a), "2")),))
    if kind == 2:
        text = rng.choice((f"What is twice {a}?", f"Double {a}.", f"What is the double of {a}?"))
        return Draft(text, (Move("", "", "*", (str(a), "2")),))
    numbers = [a, *(draw_gain(rng, min(900, a)) for _ in range(rng.choice((1, 1, 2, 3))))]
    shown = [spell(rng, number) for number in numbers]
    listed = f"{', '.join(shown[:-1])} and {shown[-1]}"
    text = rng.choice(
        (
            f"Add {listed}.",
            f"What is the sum of {listed}?",
            f"Sum of {listed}?",
            f"What do you get if you add {listed}?",
            f"How much are {listed} together?",
            f"How many are {listed} together?",
            f"Add {shown[0]} to {shown[1]}." if len(shown) == 2 else f"Add up {listed}.",
        )
    )
    first, second, *rest = map(str, numbers)
    if text.startswith("Add ") and " to " in text:
        first, second = second, first
    moves = [Move("", "", "+", (first, second))]
    moves += [Move("", "", "+", (LAST, number)) for number in rest]
    return Draft(text, tuple(moves))


def _draw_product(rng: random.Random) -> Draft:
    """Products, quotients, and sums that hold one."""
    a, b = rng.randint(2, 12), rng.randint(2, 12)
    sign = rng.choice((" * ", "*", " x ", " times ", " × "))
    kind = rng.randrange(4)
    if kind == 0:
        return Draft(_ask(rng, f"{a}{sign}{b}"), (Move("", "", "*", (str(a), str(b))),))
    if kind == 1:
        over = rng.choice((" / ", "/", " divided by ", " : ", " ÷ "))
        return Draft(_ask(rng, f"{a * b}{over}{b}"), (Move("", "", "/", (str(a * b), str(b))),))
    c = rng.randint(1, 99)
    product = Move("", "", "*", (str(a), str(b)))
    if kind == 2:
        order = Move("", "", "+", (str(c), "#1"))
        return Draft(_ask(rng, f"{c} + {a}{sign}{b}"), (product, order))
    d = rng.randint(1, 9)
    op = rng.choice("+-")
    inner = Move("", "", op, (str(c), str(d)))
    return Draft(_ask(rng, f"({c} {op} {d}){sign}{a}"), (inner, Move("", "", "*", ("#1", str(a)))))
