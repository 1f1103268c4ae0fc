"""How many rollouts each tree search may have in flight: boosting, and the gate in front of it."""
