# SPDX-License-Identifier: Apache-2.0
"""Takes images as serialised messages, through rcl's C interface, into the package's own memory.

While rclpy takes a message, it holds the GIL and converts every byte to Python objects. The
thread of an intake waits and takes without the GIL. The reader of a message parses its header in
place.
"""
