"""The servers of the terminal commands: at URLs, or models in this process."""
