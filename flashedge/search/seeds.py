"""Seeds of nodes: a pure function of the run's seed and the path of child indices."""

from __future__ import annotations

_MASK64 = (1 << 64) - 1


def mix64(*values: int) -> int:
    """Hash integers to 63 bits (SplitMix64 finalizer, chained). Stable across machines."""
    h = 0x9E3779B97F4A7C15
    for value in values:
        h = (h ^ (value & _MASK64)) & _MASK64
        h = (h + 0x9E3779B97F4A7C15) & _MASK64
        h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
        h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & _MASK64
        h ^= h >> 31
    return h >> 1


def child_seed(parent_seed: int, depth: int, index: int) -> int:
    """Seed of child `index` of a node at `depth`.

    Child 0 keeps its parent's seed. Noise is keyed by (seed, absolute position), so child 0
    continues exactly as the parent would have without a boundary. This lets a draft continue past
    the end of a step (arXiv 2509.00195 §4.1).
    """
    return parent_seed if index == 0 else mix64(parent_seed, depth, index)
