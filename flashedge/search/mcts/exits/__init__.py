"""When MCTS ends before its n rollouts, besides the policy. Each exit has a switch of its own."""
