"""A load generator for servers of language models, and the measures of what their clients see."""
