"""From a request in neutral words to its events, and back to text: the path that all APIs share."""
