"""Tools for NVIDIA cards."""
