"""A load generator for servers of language models, with measures of their clients' experience."""
