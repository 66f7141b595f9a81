"""The steps of processing a frame: preprocessing, running the network, and decoding."""
