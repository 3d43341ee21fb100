"""Values that every part of the package shares: options, events, errors, protocols, limits, text."""
