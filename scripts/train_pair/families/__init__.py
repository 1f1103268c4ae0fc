"""The families of problems, by name."""

from scripts.train_pair.families.base import Family
from scripts.train_pair.families.drill import Drill
from scripts.train_pair.families.expression import Expression
from scripts.train_pair.families.pairs import draw_pair
from scripts.train_pair.families.plain import Plain
from scripts.train_pair.families.story import Story
from scripts.train_pair.families.sums import draw_sum
from scripts.train_pair.families.telling import draw_story
from scripts.train_pair.families.variables import Variables

MEASURED = ("story", "variables", "expression")
"""The families of the held-out problems. The others are for training."""

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Story(),
        Variables(),
        Expression(),
        Drill(),
        Variables("lookups", back=0.8),  # most lines refer further back
        Story("diary", is_everyday=True),
        Plain("plain", draw_story),
        Plain("pairs", draw_pair),
        Plain("sums", draw_sum),
    )
}
