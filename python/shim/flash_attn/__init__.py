# SPDX-License-Identifier: Apache-2.0
"""flash_attn by flashtile: names, arguments and conventions of FlashAttention 2."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)  # beside another flash_attn.cute, for one
__version__ = "2.8.3+flashtile"

from flash_attn.flash_attn_interface import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

__all__ = ["flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func",
           "flash_attn_varlen_func", "flash_attn_varlen_kvpacked_func",
           "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache"]
