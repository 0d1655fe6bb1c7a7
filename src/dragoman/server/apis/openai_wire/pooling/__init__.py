"""What APIs that embed texts or rank documents have in common: reading texts, writing vectors, telling errors."""
