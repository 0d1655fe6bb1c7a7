"""What speculation brings on five kinds of text: against plain decoding, and against the peers' lookups."""
