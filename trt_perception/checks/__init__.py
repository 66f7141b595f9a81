"""Checks of doctor that need no ROS: machine, shell, software, model and cameras."""
