"""The demo model's training text: hand-written data and the generators that multiply it."""
