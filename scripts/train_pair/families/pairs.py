"""Problems with two owners in everyday English.

Tim has 30 marbles. Joe has 14 marbles. Tim gives Joe 8. How many marbles has Joe now?

Both: Tim A has 30, Joe B has 14. Tim A 8 fewer, Joe B 8 more. Joe B has 14. B 8 more. 14+8=22.
"""

import random
from collections.abc import Sequence

from scripts.train_pair.families.base import Move
from scripts.train_pair.families.plain import (
    CHANGES,
    LAST,
    NUMBER,
    Draft,
    draw_gain,
    draw_loss,
    draw_value,
    write_change,
    write_equation,
)
from scripts.train_pair.families.telling import ask, capitalize, conjugate, spell
from scripts.train_pair.families.words import GAINS, LOSSES, Person, draw_person, draw_thing

TOGETHER = ("together", "in total", "in all", "altogether", "combined")
Event = tuple[Person, str, int]
"""Who gets (`+`) or loses (`-`) how many."""
GIVING = (("gives", "gave"), ("lends", "lent"), ("sends", "sent"), ("hands", "handed"))


def draw_pair(rng: random.Random) -> Draft:
    """Draw a problem with two owners."""
    first, second = draw_person(rng), draw_person(rng)
    while second.name == first.name or first.speaks or second.speaks:
        first, second = draw_person(rng), draw_person(rng)
    thing = draw_thing(rng)
    if rng.random() < 0.05:
        return _draw_with_me(rng, first, thing)
    kind = rng.random()
    if kind < 0.22:
        return _draw_total(rng, first, second, thing)
    if kind < 0.3:
        return _draw_difference(rng, first, second, thing)
    if kind < 0.45:
        return _draw_relation(rng, first, second, thing)
    if kind < 0.78:
        return _draw_transfer(rng, first, second, thing)
    return _draw_one_of_two(rng, first, second, thing)


def _introduce(
    rng: random.Random, first: Person, a: int, second: Person, b: int, thing: str, is_past: bool
) -> str:
    """Say what both have."""
    had = "had" if is_past else "has"
    x, y = spell(rng, a), spell(rng, b)
    again = rng.choice((f" {thing}", "", ""))
    return rng.choice(
        (
            f"{first.name} {had} {x} {thing} and {second.middle} {had} {y}{again}.",
            f"{first.name} {had} {x} {thing} and {second.middle} {had} {y}{again}.",
            f"{first.name} {had} {x} {thing}, {second.middle} {had} {y}{again}.",
            f"{first.name} {had} {x} {thing}. {second.name} {had} {y}{again}.",
            f"{first.name} {had} {x} {thing}. {second.name} {had} {y}{again}.",
            f"{first.name} {had} {x} {thing} and {second.middle} {y}{again}.",
        )
    )


def _add_both(first: Person, a: str, second: Person, b: str) -> Move:
    """Create the move that adds what both have. a, b: a number, or the equation that gives it."""
    word = "Together"
    if a.isdigit() and b.isdigit():
        word = f"{first.middle} has {a}, {second.middle} has {b}"
    elif a.isdigit() or b.isdigit():
        word = f"{first.middle} has {a}" if a.isdigit() else f"{second.middle} has {b}"
    return write_equation(word, a, "+", b)


def _change_one(
    told: tuple[tuple[Person, int], ...], events: Sequence[Event], target: Person
) -> list[Move]:
    """Create the moves by which one of two gets or loses things.

    told: both and what they have; events: what happens to each. Both are in the order of the text.
    The first step writes all of it with a letter for each person, so that a small model can look up
    what belongs to whom: a name may be several tokens, and other ones in another place.
    """
    (one, a), (other, b) = told

    def letter(person: Person) -> str:
        return "A" if person is one else "B"

    listed = ", ".join(
        f"{person.middle} {letter(person)} {CHANGES[op].replace(NUMBER, str(number))}"
        for person, op, number in events
    )
    value = a if target is one else b
    (op, number), *later = [(op, number) for person, op, number in events if person is target]
    both = f"Both: {one.middle} A has {a}, {other.middle} B has {b}. {listed}"
    word = f"{both}. {target.middle} {letter(target)} has {value}. {letter(target)} {CHANGES[op]}"
    first = write_equation(word, str(value), op, str(number))
    return [
        first,
        *(
            write_equation(f"{letter(target)} {CHANGES[op]}", LAST, op, str(number))
            for op, number in later
        ),
    ]


def _tell_own(
    rng: random.Random, person: Person, thing: str, value: int, is_past: bool
) -> tuple[str, Move, int]:
    """Draw what happens to one of the two alone: the sentence, the move, the value after it."""
    is_gain = rng.random() < 0.5 or value < 3
    number = draw_gain(rng, value) if is_gain else draw_loss(rng, value)
    verb = rng.choice([v for v in (GAINS if is_gain else LOSSES) if "{" not in v.base])
    form = conjugate(verb, person, is_past)
    place = f" {verb.after}" if verb.after and "{" not in verb.after else ""
    tail = rng.choice(("", "", f" {thing}", " more" if is_gain else " of them"))
    sentence = f"{person.middle} {form} {spell(rng, number)}{tail}{place}"
    op = "+" if is_gain else "-"
    move = write_change(op, number, str(value), person.middle)
    return sentence, move, value + (number if is_gain else -number)


def _draw_total(rng: random.Random, first: Person, second: Person, thing: str) -> Draft:
    a, b, is_past = draw_value(rng), draw_value(rng), rng.random() < 0.25
    verb = rng.choice([v for v in GAINS if "{" not in v.base and not v.after])
    if rng.random() < 0.2:
        form = conjugate(verb, first, True)
        text = f"{first.name} {form} {a} {thing} and {second.middle} {form} {b} {thing}."
        is_past = True
    else:
        text = _introduce(rng, first, a, second, b, thing, is_past)
    moves, terms = list[Move](), [str(a), str(b)]
    chance = rng.random()
    if chance < 0.35:
        for index in rng.choice(((0,), (1,), (0, 1))):
            person, value = ((first, a), (second, b))[index]
            sentence, move, _ = _tell_own(rng, person, thing, value, is_past)
            text += f" {capitalize(sentence)}."
            moves.append(move)
            terms[index] = f"#{len(moves)}"
    moves.append(_add_both(first, terms[0], second, terms[1]))
    if chance > 0.85:
        number = draw_loss(rng, min(a + b, 900))
        verb = rng.choice([v for v in LOSSES if "{" not in v.base and not v.after])
        form = verb.past if is_past else verb.base
        text += f" {rng.choice(('Together they', 'They', 'They'))} {form} {number} {thing}."
        moves.append(write_change("-", number))
        left = rng.choice((" left", " now", ""))
        return Draft(f"{text} How many {thing} do they have{left}?", tuple(moves))
    both = rng.choice((f"{first.middle} and {second.middle}", "they", "they", "they", "both"))
    many = rng.choice((f"How many {thing}", f"How many {thing}", "How many"))
    word = rng.choice(TOGETHER)
    options = [f"{many} do {both} have {word}?", f"{many} do {both} have {word}?"]
    options += [f"{many} {word}?", f"{many} are there {word}?", f"{many} have {both} {word}?"]
    return Draft(f"{text} {rng.choice(options)}", tuple(moves))


def _draw_difference(rng: random.Random, first: Person, second: Person, thing: str) -> Draft:
    a, b = draw_value(rng), draw_value(rng)
    text = _introduce(rng, first, a, second, b, thing, False)
    high, low = (first, second) if a >= b else (second, first)
    many = rng.choice((f" {thing}", f" {thing}", ""))
    question = rng.choice(
        (
            f"How many more{many} does {high.middle} have than {low.middle}?",
            f"How many more{many} has {high.middle} than {low.middle}?",
            f"How many more{many} does {high.middle} have?",
            f"How many fewer{many} does {low.middle} have than {high.middle}?",
            f"How many fewer{many} has {low.middle} than {high.middle}?",
            "What is the difference?",
        )
    )
    x, y = max(a, b), min(a, b)
    word = f"{high.middle} has {x}, {low.middle} has {y}"
    move = write_equation(word, str(x), "-", str(y))
    return Draft(f"{text} {question}", (move,))


def _draw_relation(rng: random.Random, first: Person, second: Person, thing: str) -> Draft:
    """One has some more than the other."""
    a = draw_value(rng)
    kind = rng.random()
    if kind < 0.45:
        number = draw_gain(rng, a)
        op, word, value = "+", "more", a + number
    elif kind < 0.85:
        number = draw_loss(rng, a)
        op, word, value = "-", rng.choice(("fewer", "less", "fewer")), a - number
    else:
        number, op, word, value = 2, "*", "", a * 2
    x = spell(rng, number)
    if op == "*":
        relation = f"{second.middle} has twice as many{rng.choice(('', f' {thing}'))}"
    else:
        relation = rng.choice(
            (
                f"{second.middle} has {x} {word} than {first.middle}",
                f"{second.middle} has {x} {word} {thing} than {first.middle}",
                f"{second.middle} has {x} {thing} {word} than {first.middle}",
                f"{second.middle} has {x} {word}",
                f"{second.middle} has {x} {thing} {word}",
                f"{second.middle} has {x} {word} than {first.object}",
            )
        )
    opening = f"{first.name} has {spell(rng, a)} {thing}"
    text = rng.choice(
        (
            f"{opening}. {capitalize(relation)}.",
            f"{opening} and {relation}.",
            f"{opening}, {relation}.",
        )
    )
    if rng.random() < 0.1:
        text = f"{capitalize(relation)}. {opening}."
    word = f"{first.middle} has {a}. {second.middle} {CHANGES.get(op, 'twice')}"
    move = write_equation(word, str(a), op, str(number))
    many = rng.choice((f"How many {thing}", f"How many {thing}", "How many"))
    chance = rng.random()
    moves: tuple[Move, ...] = (move,)
    if chance < 0.22 and value <= 450:
        moves = (move, write_equation("Together", str(a), "+", "#1"))
        return Draft(f"{text} {many} do they have {rng.choice(TOGETHER)}?", moves)
    if chance < 0.4:
        is_gain = rng.random() < 0.5 or value < 3
        change = draw_gain(rng, value) if is_gain else draw_loss(rng, max(value, 0))
        verb = rng.choice([v for v in (GAINS if is_gain else LOSSES) if "{" not in v.base])
        form = conjugate(verb, second, False)
        text += f" {second.name} {form} {change}."
        moves = (move, write_change("+" if is_gain else "-", change))
    question = rng.choice(
        (
            f"{many} does {second.middle} have{rng.choice(('', ' now'))}?",
            f"{many} does {second.middle} have?",
            f"{many} has {second.middle}?",
            f"{many} has {second.middle} got?",
        )
    )
    return Draft(f"{text} {question}", moves)


def _draw_transfer(rng: random.Random, first: Person, second: Person, thing: str) -> Draft:
    """One gives the other some."""
    a, b, is_past = max(2, draw_value(rng)), draw_value(rng), rng.random() < 0.3
    number = draw_loss(rng, a)
    give = rng.choice(GIVING)[is_past]
    x = spell(rng, number)
    tail = rng.choice(("", "", f" {thing}", " of them", f" of {first.possessive} {thing}"))
    transfer = rng.choice(
        (
            f"{first.middle} {give} {second.middle} {x}{tail}",
            f"{first.middle} {give} {second.middle} {x}{tail}",
            f"{first.middle} {give} {x}{tail} to {second.middle}",
            f"{first.middle} {give} {x}{tail} to {second.middle}",
            f"{first.middle} {'lost' if is_past else 'loses'} {x}{tail} to {second.middle}",
            f"{second.middle} {'got' if is_past else 'gets'} {x}{tail} from {first.middle}",
            f"{second.middle} {'took' if is_past else 'takes'} {x}{tail} from {first.middle}",
            f"{second.middle} {'won' if is_past else 'wins'} {x}{tail} from {first.middle}",
        )
    )
    had = "had" if is_past else "has"
    if rng.random() < 0.04:
        number = a
        transfer = f"{first.middle} {give} all {first.possessive} {thing} to {second.middle}"
    order, told = rng.random(), ((first, a), (second, b))
    if order < 0.15:
        text = f"{first.name} {had} {spell(rng, a)} {thing}. {capitalize(transfer)}."
        text += f" {second.name} had {spell(rng, b)}{rng.choice((' before', '', f' {thing}'))}."
    elif order < 0.22 and number < a:
        text = f"{first.name} {had} {a} {thing} and {give} {x}{tail} to {second.middle}, who "
        text += f"{rng.choice(('already had', 'had', 'has'))} {b}."
    elif order < 0.5:
        told = ((second, b), (first, a))
        text = f"{_introduce(rng, second, b, first, a, thing, is_past)} {capitalize(transfer)}."
    else:
        text = f"{_introduce(rng, first, a, second, b, thing, is_past)} {capitalize(transfer)}."
    if rng.random() < 0.5:
        target, value, op = second, b, "+"
    else:
        target, value, op = first, a, "-"
    events: list[Event] = [(first, "-", number), (second, "+", number)]
    value += number if op == "+" else -number
    chance = rng.random()
    if chance < 0.15:
        both = _add_both(first, str(a), second, str(b))
        return Draft(f"{text} How many {thing} do they have {rng.choice(TOGETHER)}?", (both,))
    if chance < 0.35:
        is_gain = rng.random() < 0.5 or value < 3
        change = draw_gain(rng, value) if is_gain else draw_loss(rng, value)
        verb = rng.choice([v for v in (GAINS if is_gain else LOSSES) if "{" not in v.base])
        form = conjugate(verb, target, is_past)
        text += f" {rng.choice(('', 'Then '))}{target.middle} {form} {change}."
        events.append((target, "+" if is_gain else "-", change))
    moves = _change_one(told, events, target)
    question = ask(rng, target, thing, moves[-1].op == "+", by_name=True)
    return Draft(f"{text} {question}", tuple(moves))


def _draw_with_me(rng: random.Random, other: Person, thing: str) -> Draft:
    """The one who tells the problem, and somebody else."""
    mine, theirs = draw_value(rng), max(2, draw_value(rng))
    mine_first = rng.random() < 0.4
    have, has = f"I have {mine}", f"{other.middle} has {theirs}"
    one, two = (have, has) if mine_first else (has, have)
    text = capitalize(f"{one} {thing}{rng.choice((' and ', ', ', '. '))}{two}.")
    number = draw_loss(rng, theirs)
    subject = rng.choice((other.middle, other.subject)) if other.subject != "they" else other.middle
    text += f" {capitalize(subject)} {rng.choice(('gives', 'lends', 'sends'))} me {number}."
    if rng.random() < 0.6:
        move = write_change("+", number, str(mine), "I")
        return Draft(f"{text} How many {rng.choice((thing + ' ', ''))}do I have now?", (move,))
    move = write_change("-", number, str(theirs), other.middle)
    return Draft(f"{text} How many {thing} does {other.middle} have now?", (move,))


def _draw_one_of_two(rng: random.Random, first: Person, second: Person, thing: str) -> Draft:
    """Both have things and both change; the question is about one of them."""
    a, b, is_past = draw_value(rng), draw_value(rng), rng.random() < 0.3
    text = _introduce(rng, first, a, second, b, thing, is_past)
    asked, events = rng.choice((0, 1)), list[Event]()
    told, values = list[str](), [a, b]
    for index in rng.choice(((0, 1), (1, 0), (asked,), (asked, 1 - asked, asked))):
        person = (first, second)[index]
        sentence, move, values[index] = _tell_own(rng, person, thing, values[index], is_past)
        told.append(sentence)
        events.append((person, move.op, int(move.terms[1])))
    if len(told) == 2 and rng.random() < 0.4:
        text += f" {capitalize(told[0])} and {told[1]}."
    else:
        text += "".join(f" {capitalize(sentence)}." for sentence in told)
    target = (first, second)[asked]
    moves = _change_one(((first, a), (second, b)), events, target)
    question = ask(rng, target, thing, moves[-1].op == "+", by_name=True)
    return Draft(f"{text} {question}", tuple(moves))
