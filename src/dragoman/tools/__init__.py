"""The work of the commands plan, doctor, selftest, bench, eval and compress. No server imports it."""
