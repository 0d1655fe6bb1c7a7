"""Output grammars: compiled for a tokenizer's vocabulary, followed token by token."""
