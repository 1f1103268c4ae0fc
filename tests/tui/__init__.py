"""The dashboard on scripted daemons."""
