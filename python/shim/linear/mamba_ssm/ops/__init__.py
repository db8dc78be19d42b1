# SPDX-License-Identifier: Apache-2.0
"""Scans of Mamba and Mamba-2."""
