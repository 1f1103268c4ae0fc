"""Files of problems, journals that let an interrupted command resume, and versions of files."""
