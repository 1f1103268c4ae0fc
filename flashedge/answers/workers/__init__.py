"""Tests of equality that run in a process of their own: mathematics and sentence embeddings."""
