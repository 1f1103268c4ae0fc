"""Whether two answers are equal: by spelling, number, words, mathematics or meaning."""
