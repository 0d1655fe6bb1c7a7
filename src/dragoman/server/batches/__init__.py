"""Files that clients upload, and batches of requests over them, which are answered when nobody else asks."""
