"""The families of problems, by name."""

from scripts.train_pair.families.base import Family
from scripts.train_pair.families.drill import Drill
from scripts.train_pair.families.expression import Expression
from scripts.train_pair.families.story import Story
from scripts.train_pair.families.variables import Variables

LOOKUPS = Variables("lookups", back=0.8)  # for training: most lines refer further back
FAMILIES: dict[str, Family] = {
    family.name: family for family in (Story(), Variables(), Expression(), Drill(), LOOKUPS)
}
