"""`chat`: the command, the turns of a conversation, and the conversations that are kept."""
