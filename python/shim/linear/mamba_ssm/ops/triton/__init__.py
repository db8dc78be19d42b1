# SPDX-License-Identifier: Apache-2.0
"""Mamba-2's functions, in the folder where programs look for them."""
