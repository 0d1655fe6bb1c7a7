"""How much there is to do, and how long that takes: what refusals go by."""
