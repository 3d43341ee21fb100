"""A Hub on this machine: small repos in the real format, for the demo and the tests. Knows nothing of the engine."""
