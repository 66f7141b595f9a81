"""What can be wrong with a machine, a shell or a model; the part of doctor that needs no ROS."""
