"""Serialised messages that rclpy does not write, but reads."""

import struct


def swapped(message):
    """Return an Image in the other byte order, put together by hand."""
    body = bytearray()

    def put(layout, *values):
        size = struct.calcsize('>' + layout[-1])
        body.extend(bytes(-len(body) % size))
        body.extend(struct.pack('>' + layout, *values))

    def text(content):
        encoded = content.encode() + b'\0'
        put('I', len(encoded))
        body.extend(encoded)

    put('i', message.header.stamp.sec)
    put('I', message.header.stamp.nanosec)
    text(message.header.frame_id)
    put('I', message.height)
    put('I', message.width)
    text(message.encoding)
    put('B', message.is_bigendian)
    put('I', message.step)
    put('I', len(message.data))
    return b'\0\0\0\0' + bytes(body) + bytes(message.data)
