# SPDX-License-Identifier: Apache-2.0
"""The mailboxes of the cameras, the order of service, and the threads that run the pipelines."""
