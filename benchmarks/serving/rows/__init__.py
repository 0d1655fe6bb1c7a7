"""The rows of the table: one module each, with `run(settings)` that yields results and the measuring function it uses."""
