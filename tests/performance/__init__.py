"""The guard for speed: counted instructions and ratios, never a clock."""
