"""The ROS shell: the only place that imports rclpy or messages."""
