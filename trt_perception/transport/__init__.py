# SPDX-License-Identifier: Apache-2.0
"""Settings for the transport of large images, and a check for unfinished shared memory."""
