"""The recipe of the bundled demo model: corpus, tokenizer, model, training, export and evaluation.

Not part of the installed package: the wheel ships only the result (``src/dragoman/demo_model``).
Run its modules from the repository root, for example ``python -m demo.train``; see ``demo/README.md``.
"""
