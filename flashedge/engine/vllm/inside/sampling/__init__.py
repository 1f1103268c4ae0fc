"""How the generator draws a token: by one kernel on a card, by PyTorch elsewhere."""
