"""How frames get into the memory of a GPU: their places, headers and JPEG decoding."""
