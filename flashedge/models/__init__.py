"""Which models there are (models.toml), where their files lie, and what they must hold."""
