# SPDX-License-Identifier: Apache-2.0
"""The topics of one camera: images in, results and debug images out; and its monitor."""
