"""The servers of the terminal commands: those at URLs, and models in this process."""
