"""vLLM's own HTTP protocols over the generator's engine, for requests outside any run."""
