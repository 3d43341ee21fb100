"""How the bytes of a tensor are made, one way a room."""
