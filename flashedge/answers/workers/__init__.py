"""Tests of equality that need their own process: mathematics and sentence embeddings."""
