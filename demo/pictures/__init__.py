"""Pictures that we draw for the demo vision model, and questions about them with their right answers.

``scene`` says what is in a picture, ``render`` draws it, ``labels`` says it patch by patch, ``wordings`` and ``questions``
ask about it. Everything follows from a seeded ``Random``.
"""
