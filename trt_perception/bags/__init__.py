"""Bags: recordings of ROS topics, read and written without ROS."""
