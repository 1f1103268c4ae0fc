"""What to expand: pure search algorithms. No clock, no I/O, no engine."""
