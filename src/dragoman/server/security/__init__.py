"""Access control: keys, signatures, scopes, limits, certificates, and pages of other origins."""
