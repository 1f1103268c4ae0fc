"""Predicts how long the outputs of a request will be, before it runs."""
