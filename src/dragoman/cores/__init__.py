"""Which cores the kernels use and which HTTP does: lists of cores, what Linux tells of them, and where threads go."""
