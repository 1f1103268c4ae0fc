"""How long an output will be: distributions of its tokens, fitted, conditioned and scored."""
