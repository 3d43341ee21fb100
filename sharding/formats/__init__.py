"""Convert the bytes of files to values and back, with one module per format."""
