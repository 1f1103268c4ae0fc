"""Measuring tools: they compare, simulate and evaluate the product, which never imports them."""
