"""Images as serialised messages, taken through rcl's C interface into memory of ours.

rclpy turns every byte of a message into Python objects with the interpreter's lock held. Here a
thread waits and takes without the lock, and the first that looks at a message reads its header in
place.
"""
