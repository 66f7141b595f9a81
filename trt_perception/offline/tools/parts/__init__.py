# SPDX-License-Identifier: Apache-2.0
"""Parts of the commands: arguments, sources, outputs and texts."""
