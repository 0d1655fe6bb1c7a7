"""What the commands beside `serve` do: plan, doctor, selftest, bench, eval and compress. No server imports it."""
