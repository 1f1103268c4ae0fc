"""Trains a small pair that calls tools, and measures searches with tools by problems whose right
call is known."""
