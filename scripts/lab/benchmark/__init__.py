"""Measures what each optimization gains, on a simulated card or on real engines."""
