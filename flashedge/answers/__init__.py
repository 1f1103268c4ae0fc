"""Whether two answers are equal. Start at `equality`."""
