"""How prompts become token ids: what we and the template write acts, what others write is text."""
