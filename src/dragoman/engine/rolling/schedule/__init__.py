"""Which tokens run in the next step: admission, the token budget, preemption, the pace of prompts."""
