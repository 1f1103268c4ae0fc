"""Train a process reward model on a generator's own solutions, judge it, and make its folder."""
