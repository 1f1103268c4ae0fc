"""How many rollouts each tree search may have in flight: boosting, and the limit on it."""
