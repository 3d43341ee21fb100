"""Answer "Is this copy the same?" for any two repos."""
