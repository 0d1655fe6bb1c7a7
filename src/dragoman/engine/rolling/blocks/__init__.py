"""The blocks of the key/value cache: who holds which, and what is evicted first."""
