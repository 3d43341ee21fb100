"""Which tensor goes where."""
