"""FlashEdge: a local reasoning server for one consumer GPU."""

__version__ = "0.1.0"
