"""What is told of calls while they run and when they have ended: the log's lines, metrics, the list of what runs."""
