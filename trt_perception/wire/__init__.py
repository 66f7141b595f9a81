"""Serialised messages, read and written without ROS."""
