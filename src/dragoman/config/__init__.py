"""Options: the table that declares them, the sources that set them, and the frozen configuration they resolve to."""
