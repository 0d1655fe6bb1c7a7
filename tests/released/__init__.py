"""Released checkpoints, served and compared with what other libraries compute on the same files: `make test-models`."""
