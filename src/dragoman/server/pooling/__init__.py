"""Models that embed, score or classify texts: what APIs ask of them (`base`), and the service that answers."""
