"""Boosting: divides rollouts among MCTS runs, and replays what they did."""
