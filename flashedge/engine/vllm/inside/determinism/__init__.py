"""Decode, verify, roll back: deterministic requests inside vLLM (ADR 20)."""
