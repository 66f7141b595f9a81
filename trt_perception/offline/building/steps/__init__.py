"""The steps of a build, and their order."""
