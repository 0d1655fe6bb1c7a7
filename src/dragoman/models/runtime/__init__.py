"""Driving the runtime: compiled graphs that are kept, its threads, its memory, its first step."""
