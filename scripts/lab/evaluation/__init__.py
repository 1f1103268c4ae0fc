"""Measuring a pair on problems with known answers, through the daemon."""
