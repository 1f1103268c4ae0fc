"""What a step of the engine holds in memory, counted and measured."""
