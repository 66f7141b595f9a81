"""Parts of the commands: arguments, sources, outputs and texts."""
