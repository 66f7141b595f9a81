# SPDX-License-Identifier: Apache-2.0
"""Files: atomic writing, caches, checked reading of untrusted files and text, JSON."""
