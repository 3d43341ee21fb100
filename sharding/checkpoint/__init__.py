"""What a source says of itself: its weight files, their headers, its library, the files beside them."""
