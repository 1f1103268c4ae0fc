"""The models that FlashEdge knows, where their files are, and checks of these files."""
