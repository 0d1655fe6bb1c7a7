"""`dragoman store`: what lies in the directory of prompts on disk."""
