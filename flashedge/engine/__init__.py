"""The engines: protocols (`base`), and the real ones (`vllm/`)."""
