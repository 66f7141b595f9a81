"""Provide code that several test files share."""
