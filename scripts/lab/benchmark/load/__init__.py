"""Puts a load of many programs on a daemon or on simulated engines, and measures how each fares."""
