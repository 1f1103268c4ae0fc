"""Drafts tokens on the device where they are drawn."""
