# SPDX-License-Identifier: Apache-2.0
"""Serialise messages in both byte orders. rclpy reads both, but writes only one."""

import struct


def in_other_byte_order(message):
    """Return an Image or a CompressedImage in the byte order that rclpy does not write."""
    return cdr_and_length_offsets(message, '>')[0]


def cdr_and_length_offsets(message, byte_order):
    """Return an Image or a CompressedImage as CDR bytes, and the offsets of its length fields.

    Args:
        message: a message object of rclpy.
        byte_order: ``<`` or ``>``, as for struct.
    """
    body = bytearray()
    places = []

    def put(kind, value):
        size = struct.calcsize(byte_order + kind)
        body.extend(bytes(-len(body) % size))
        body.extend(struct.pack(byte_order + kind, value))

    def octets(content):
        put('I', len(content))
        # The length is 4 bytes back in the body, but a header of 4 bytes precedes the body.
        places.append(len(body))
        body.extend(content)

    put('i', message.header.stamp.sec)
    put('I', message.header.stamp.nanosec)
    octets(message.header.frame_id.encode() + b'\0')
    if hasattr(message, 'format'):
        octets(message.format.encode() + b'\0')
    else:
        put('I', message.height)
        put('I', message.width)
        octets(message.encoding.encode() + b'\0')
        put('B', message.is_bigendian)
        put('I', message.step)
    octets(bytes(message.data))
    begin = b'\0\1\0\0' if byte_order == '<' else b'\0\0\0\0'
    return begin + bytes(body), places
