"""Anthropic's Messages API: its errors."""
