"""Data, training, export and evaluation of the bundled pair."""
