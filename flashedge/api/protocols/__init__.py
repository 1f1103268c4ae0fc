"""The protocols that agents speak: vLLM's handlers, with searches behind the same shapes."""
