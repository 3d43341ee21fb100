"""Read what a source contains: its weight files, their headers, its library, the files beside them."""
