"""Words and schemas that APIs describe their operations with."""
