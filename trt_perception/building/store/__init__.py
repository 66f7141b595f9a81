"""Engines built before: found again by what they were made of."""
