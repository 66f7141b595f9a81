"""The command doctor, and its looks at the ROS graph and at parameters."""
