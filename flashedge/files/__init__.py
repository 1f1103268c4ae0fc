"""Files of problems, and journals that let an interrupted command resume."""
