"""Numbered days in everyday words: `Day 2: she gives away 7 nuts.` Short, and solved right."""

import random

from scripts.train_pair.families.base import LIMIT, LONG, Move, Spec
from scripts.train_pair.families.plain import draw_value
from scripts.train_pair.families.telling import ask, conjugate, draw_event, spell
from scripts.train_pair.families.words import GAINS, LOSSES, draw_person, draw_thing


def make_diary(rng: random.Random, name: str) -> Spec:
    """Draw a problem of days that a person could have typed. name: the family's."""
    while (spec := _draw_diary(rng, name)) is None:
        pass
    return spec


def _draw_diary(rng: random.Random, name: str) -> Spec | None:
    """Draw a problem, or None if a value grew too large."""
    owner, thing, start = draw_person(rng), draw_thing(rng), draw_value(rng)
    is_past = rng.random() < 0.15
    style = rng.random()
    value, moves, days = start, list[Move](), list[str]()
    count = rng.choice([1, 2, 2, 2, 3, 3, 3, 4, 4, LONG - 1])
    for day in range(1, count + 1):
        event = draw_event(rng, owner, thing, value, is_past, own=rng.random() < 0.9)
        while not event.verb:  # a day's step ends with its numbers
            event = draw_event(rng, owner, thing, value, is_past, own=True)
        word = event.verb
        if style < 0.5 and event.gerund:  # the README's own form: a verb and a number
            verb = rng.choice(GAINS if event.value > value else LOSSES)
            word = conjugate(verb, owner, is_past).partition(" {")[0]
            text = f"{word} {event.move.terms[1]}"
        elif style < 0.75 or not event.gerund:
            text = event.short
        else:
            text = event.clause
        days.append(f"Day {day}: {text}.")
        moves.append(Move(str(day), word, event.move.op, (event.move.terms[1],)))
        value = event.value
        if value > LIMIT:
            return None
    plain = owner.subject in ("I", "they")
    has = "have" if plain else "has"
    opening = f"{owner.name} {'had' if is_past else has} {spell(rng, start)} {thing}."
    many, does = f"How many {thing}", "do" if plain else "does"
    question = rng.choice(
        (
            f"{many} {has} {owner.middle} after day {count}?",
            f"{many} {has} {owner.middle} after day {count}?",
            f"{many} {does} {owner.middle} have after day {count}?",
            f"{many} {does} {owner.subject} have after day {count}?",
            f"{many} {has} {owner.middle} at the end?",
            ask(rng, owner, thing, all(move.op == "+" for move in moves)),
        )
    )
    text = f"{opening} {' '.join(days)} {question}"
    return Spec(family=name, text=text, moves=tuple(moves), start=start)
