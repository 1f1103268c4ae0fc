"""The engines: protocols (`base`), the real ones (`vllm/`), the simulated one (`simulated`)."""
