"""How a model is recognised where nothing says what it is."""
