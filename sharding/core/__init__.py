"""Words that everybody shares: values, options, events, errors, protocols, limits, text."""
