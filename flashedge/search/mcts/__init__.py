"""Monte Carlo tree search with rollouts in parallel: its state and its parts."""
