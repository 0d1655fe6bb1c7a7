"""What LMI's front end does before a model is asked."""
