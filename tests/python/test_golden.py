# SPDX-License-Identifier: Apache-2.0
"""The golden cases (tests/golden/README.md) through flashtile.attention and its backward."""

import json

import numpy as np
import plain
import pytest

import flashtile

NAMES = {"k_cache": "k", "v_cache": "v", "cache_seqlens": "seqused_k"}
INPUTS = {"q", "k", "v", "bias", "alibi_slopes", "sink", "cu_seqlens_q", "cu_seqlens_k",
          "seqused_k", "leftpad_k", "block_table", "cache_batch_idx", "block_counts",
          "block_indices", "k_new", "v_new", "rotary_cos", "rotary_sin"}


def arguments(tensors, options):
    given = {NAMES.get(name, name): array for name, array in tensors.items()}
    aux = {name[4:]: array for name, array in given.items() if name.startswith("aux.")}
    result = {name: given[name] for name in INPUTS if name in given}
    result.update({name: value for name, value in options.items() if value is not None and name in (
        "softmax_scale", "query_offset", "causal", "attention_chunk", "softcap", "score", "mask",
        "rotary_interleaved")})
    if aux:
        result["aux"] = aux
    if options.get("window"):
        result["window"] = tuple(options["window"])
    if options.get("block_size"):
        result["block_rows"], result["block_cols"] = options["block_size"]
    if options.get("dropout"):
        result.update({f"dropout_{name}": value for name, value in options["dropout"].items()})
    return result


def check(name, found, expected, bound):
    expected = expected.reshape(found.shape)
    found = np.asarray(found, np.float64)
    finite = np.isfinite(expected)
    assert (np.isnan(found) == np.isnan(expected)).all(), name
    assert (found[np.isinf(expected)] == expected[np.isinf(expected)]).all(), name
    assert abs(found[finite] - expected[finite]).max(initial=0) <= bound, name


@pytest.mark.parametrize("path", sorted(plain.GOLDEN.glob("*.safetensors")), ids=lambda p: p.stem)
def test_case(path):
    tensors, metadata = plain.load_safetensors(path)
    options, plain_err, floor = (json.loads(metadata[key])
                                 for key in ("options", "plain_err", "floor"))
    bound = {name: 2 * plain_err[name] + floor[name] for name in plain_err}
    given = arguments(tensors, options)
    out, lse = flashtile.attention(**given, return_lse=True)
    found = {"out": out, "lse": lse, "k_cache": given["k"], "v_cache": given["v"]}
    if "dout" in tensors:
        wanted = [name.replace("expect.daux", "aux").replace("expect.d", "") for name in tensors
                  if name.startswith("expect.d") and name != "expect.dropout_keep"]
        backward = {name: value for name, value in given.items()
                    if not name.startswith(("rotary", "k_new", "v_new"))}
        found.update({f"d{name}": gradient for name, gradient in flashtile.attention_backward(
            tensors["dout"], out=out, lse=lse, dlse=tensors.get("dlse"), gradients=wanted,
            **backward).items()})
    checked = 0
    for name, expected in tensors.items():
        if name.startswith("expect.") and name != "expect.dropout_keep":
            check(name, found[name[7:]], expected, bound[name[7:]])
            checked += 1
    assert checked >= 2
