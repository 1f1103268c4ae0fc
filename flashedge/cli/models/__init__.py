"""The commands under models: list, show, pull, remove, evaluate."""
