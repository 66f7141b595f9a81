# SPDX-License-Identifier: Apache-2.0
"""Results of tasks that describe the whole image: classes, class maps, depth maps."""
