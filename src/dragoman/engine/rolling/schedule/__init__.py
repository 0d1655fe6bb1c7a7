"""Chooses the tokens of the next step: admission, the token budget, preemption, the pace of prompts."""
