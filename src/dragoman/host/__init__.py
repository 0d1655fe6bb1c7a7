"""The owner of the models: what is loaded, what is being loaded, and what memory each of them takes."""
