"""Open-ended answers grouped by meaning: a sentence-embedding model in a worker process."""
