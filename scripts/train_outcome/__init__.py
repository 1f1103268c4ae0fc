"""Trains a small outcome reward model, and measures best-of-n by it."""
