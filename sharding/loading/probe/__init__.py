"""Load one checkpoint in a process of its own and report the cost, with a forward pass: a mapped load reads nothing."""
