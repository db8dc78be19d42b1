# SPDX-License-Identifier: Apache-2.0
"""CrossEntropyLoss with flash_attn's arguments."""

import torch
from flash_attn.ops.triton.cross_entropy import cross_entropy_loss


class CrossEntropyLoss(torch.nn.Module):
    """The mean (or sum, or "none") of cross_entropy_loss over labels that are not ignored."""

    def __init__(self, ignore_index=-100, reduction="mean", label_smoothing=0.0, logit_scale=1.0,
                 lse_square_scale=0.0, inplace_backward=False, process_group=None,
                 return_z_loss=False):
        super().__init__()
        if reduction not in ("mean", "none", "sum"):
            raise NotImplementedError(f"CrossEntropyLoss: reduction is '{reduction}', expected "
                                      "'mean', 'none' or 'sum'")
        self.ignore_index, self.reduction = ignore_index, reduction
        self.label_smoothing, self.logit_scale = label_smoothing, logit_scale
        self.lse_square_scale, self.inplace_backward = lse_square_scale, inplace_backward
        self.process_group, self.return_z_loss = process_group, return_z_loss

    def forward(self, input, target, precomputed_lse=None):
        """The loss of input (rows, classes) and target (rows), or (loss, its part of squares)."""
        both = cross_entropy_loss(
            input, target, precomputed_lse, self.label_smoothing, self.logit_scale,
            self.lse_square_scale, self.ignore_index, self.inplace_backward, self.process_group)
        if self.reduction != "none":
            both = [part.sum() for part in both]
        if self.reduction == "mean":
            count = (target != self.ignore_index).sum()
            both = [part / count for part in both]
        return tuple(both) if self.return_z_loss else both[0]
