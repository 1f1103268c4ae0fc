"""Boosting: gives MCTS runs more rollouts where that gets more done, and replays such runs."""
