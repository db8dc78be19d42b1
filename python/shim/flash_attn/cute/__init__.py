# SPDX-License-Identifier: Apache-2.0
"""FlashAttention 4's two functions by flashtile."""

from flash_attn.cute.interface import flash_attn_func, flash_attn_varlen_func

__version__ = "2.8.3+flashtile"
__all__ = ["flash_attn_func", "flash_attn_varlen_func"]
