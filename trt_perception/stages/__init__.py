"""The steps a frame goes through: preprocessing, the engine's runtime, decoding."""
