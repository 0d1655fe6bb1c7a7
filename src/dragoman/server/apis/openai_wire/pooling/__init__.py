"""Shared by the APIs that embed texts or rank documents: reading texts, writing vectors, reporting errors."""
