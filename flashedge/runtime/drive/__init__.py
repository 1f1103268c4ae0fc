"""The driver: carries a search's commands out on the engines."""
