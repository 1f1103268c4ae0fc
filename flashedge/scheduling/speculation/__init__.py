"""Speculation: which steps are drafted before the search requests them."""
