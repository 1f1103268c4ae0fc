"""The search strategies, one file each."""
