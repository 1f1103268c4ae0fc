"""Boosting: gives MCTS runs more rollouts while nobody waits for them, and replays such runs."""
