"""Serve a Hub on this machine for the demo and the tests: small repos in the real format, without the engine."""
