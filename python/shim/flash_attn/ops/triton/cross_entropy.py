# SPDX-License-Identifier: Apache-2.0
"""Cross entropy with smoothing, a scale of logits and a loss of the square of lse, in PyTorch."""

from typing import Optional, Tuple

import torch


def cross_entropy_loss(
        logits: torch.Tensor, labels: torch.Tensor,
        precomputed_lse: Optional[torch.Tensor] = None, label_smoothing: float = 0.0,
        logit_scale: float = 1.0, lse_square_scale: float = 0.0, ignore_index=-100,
        inplace_backward: bool = False, process_group=None,
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Losses of rows, f32, 0 where the label is ignore_index.

    Args:
        logits: (rows, classes).
        labels: (rows).
        precomputed_lse: (rows), the logarithm of the sum of exp(logit_scale * logits).
        label_smoothing: this part of each label is spread over all classes.
        lse_square_scale: this times lse^2 is added.
        inplace_backward: allowed to overwrite logits; not used.
        process_group: must be None: classes are not split over processes here.

    Returns:
        (losses, the part that lse_square_scale adds, without gradient).
    """
    if process_group is not None and torch.distributed.get_world_size(process_group) > 1:
        raise NotImplementedError("flash_attn: classes split over processes are not taken by "
                                  "flashtile")
    scores = logits.float() * logit_scale
    lse = scores.logsumexp(-1)
    if precomputed_lse is not None:
        # The given number, and the gradient that the sum has.
        lse = lse + (precomputed_lse - lse).detach()
    ignored = labels == ignore_index
    taken = scores.gather(-1, labels.masked_fill(ignored, 0)[:, None].long())[:, 0]
    if label_smoothing > 0:
        taken = (1 - label_smoothing) * taken + label_smoothing * scores.mean(-1)
    of_squares = lse_square_scale * lse.square()
    losses = (lse - taken + of_squares).masked_fill(ignored, 0.0)
    return losses, of_squares.masked_fill(ignored, 0.0).detach()
