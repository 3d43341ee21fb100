"""Say which tensors of a module make a quantized weight, and by which formula. A room for each family of formats."""
