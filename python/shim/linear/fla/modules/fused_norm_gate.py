# SPDX-License-Identifier: Apache-2.0
"""RMS norms with gates."""

from fla.modules import FusedRMSNormGated, FusedRMSNormSwishGate

__all__ = ["FusedRMSNormGated", "FusedRMSNormSwishGate"]
