# SPDX-License-Identifier: Apache-2.0
"""Report pages: HTML files that contain their pictures, style and script."""
