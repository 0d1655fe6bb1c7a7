"""Output grammars: compiled for one tokenizer's vocabulary, followed token by token."""
