"""Recognises models without a manifest."""
