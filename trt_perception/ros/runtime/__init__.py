"""The process of a ROS program: command line, executor, services, timers, log, time limits."""
