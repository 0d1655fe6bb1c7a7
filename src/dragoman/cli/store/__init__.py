"""`dragoman store`: manages the directory of prompts on disk."""
