# SPDX-License-Identifier: Apache-2.0
"""Padded batches to packed rows and back."""

import torch


def index_first_axis(input, indices):
    """Rows `indices` of the first axis, with gradients."""
    return input[indices]


def index_put_first_axis(values, indices, first_axis_dim):
    """An array of so many rows, zero but for `values` at `indices`."""
    zeros = values.new_zeros(first_axis_dim, *values.shape[1:])
    return zeros.index_copy(0, indices, values)


def index_first_axis_residual(input, indices):
    """index_first_axis, and the input itself."""
    return index_first_axis(input, indices), input.detach()


def _starts(lengths):
    return torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))


def unpad_input(hidden_states, attention_mask, unused_mask=None):
    """The rows that a mask keeps.

    Args:
        hidden_states: (batch, seqlen, ...).
        attention_mask: (batch, seqlen), not 0 for rows that count.
        unused_mask: (batch, seqlen), not 0 for rows that are kept and do not count.

    Returns:
        (rows (total, ...), their places in batch * seqlen, cu_seqlens (batch + 1) i32, the longest
        length, the lengths that count (batch) i32).
    """
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(-1, dtype=torch.int32)
    indices = kept.flatten().nonzero().flatten()
    return (index_first_axis(hidden_states.flatten(0, 1), indices), indices, _starts(lengths),
            int(lengths.max().item()), attention_mask.sum(-1, dtype=torch.int32))


def unpad_input_for_concatenated_sequences(hidden_states, attention_mask_in_length):
    """unpad_input where row b of the mask lists the lengths of sequences that stand one behind
    the other in line b, followed by zeros.

    Returns:
        (rows, their places, cu_seqlens of all sequences, the longest length).
    """
    used = attention_mask_in_length.sum(-1)
    place = torch.arange(attention_mask_in_length.shape[-1], device=used.device)
    indices = (place < used[:, None]).flatten().nonzero().flatten()
    lengths = attention_mask_in_length[attention_mask_in_length != 0]
    return (index_first_axis(hidden_states.flatten(0, 1), indices), indices, _starts(lengths),
            int(lengths.max().item()))


def pad_input(hidden_states, indices, batch, seqlen):
    """(batch, seqlen, ...) of rows (total, ...) that stand at `indices`; zero elsewhere."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(
        0, (batch, seqlen))
