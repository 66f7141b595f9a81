"""Mailboxes of the cameras, whose turn it is, and the threads that run the pipelines."""
