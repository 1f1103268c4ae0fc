"""Code that runs inside vLLM's engine processes, never in the daemon."""
