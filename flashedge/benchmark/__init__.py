"""What each optimization brings: a ladder of switches, on a simulated device or real engines."""
