"""Builds, evaluates, benchmarks and inspects models. The node imports nothing from here."""
