"""Who answers the terminal commands: servers at URLs, and models in this process."""
