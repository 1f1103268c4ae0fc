"""Families of length distributions. `fit.py` chooses a member of a family by its name."""
