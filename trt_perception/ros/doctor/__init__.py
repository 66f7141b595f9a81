"""The command doctor, with its checks of the ROS graph and of parameters."""
