"""Who may ask for what: keys, signatures, scopes, limits, certificates, and pages of other origins."""
