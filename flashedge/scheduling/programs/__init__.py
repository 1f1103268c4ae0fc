"""Which program runs next: a program is a search, a conversation or a batch's problem."""
