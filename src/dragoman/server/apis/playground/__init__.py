"""A page on which people try the models in a browser: `/playground`."""
