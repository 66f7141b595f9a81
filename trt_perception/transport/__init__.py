"""What to set so that large images arrive, and what is left of transports that broke."""
