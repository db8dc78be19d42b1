# SPDX-License-Identifier: Apache-2.0
"""The golden cases of linear attention (tests/golden/README.md) as arguments of flashtile's
functions, and what is right for their results."""

import json

import numpy as np
import plain

from flashtile._linear import operators

PATHS = sorted((plain.ROOT / "tests" / "golden" / "linear").glob("*.safetensors"))


class Case:
    """A file: `inputs` and `options` by the names of flashtile's functions, `incoming` gradients
    by the names of results, and the results themselves."""

    def __init__(self, path):
        tensors, metadata = plain.load_safetensors(path)
        options, plain_err, floor = (json.loads(metadata[key])
                                     for key in ("options", "plain_err", "floor"))
        limits = options.pop("dt_limit", None)
        if limits:
            options["dt_min"], options["dt_max"] = limits
        self.op = metadata["op"]
        self.options = {name: value for name, value in options.items() if value is not None}
        self.expected = {name[len("expect."):]: array for name, array in tensors.items()
                         if name.startswith("expect.")}
        self.incoming = {name[1:]: tensors[name] for name in tensors
                         if name == "dout" or name.startswith("dfinal_")}
        self.inputs = {name: array for name, array in tensors.items()
                       if name.partition(".")[0] != "expect" and name[1:] not in self.incoming}
        self.bound = {name: 2 * plain_err[name] + floor[name] for name in plain_err}

    def gradients(self):
        """Names of the inputs whose gradients are known."""
        return [name[1:] for name in self.expected
                if name.startswith("d") and name[1:] in self.inputs]

    def finals(self):
        return [name for name in self.expected if name.startswith("final_")]

    def check(self, found):
        """Of results by their names all those that are known."""
        assert found.keys() >= self.expected.keys()
        for name, expected in self.expected.items():
            result = np.asarray(found[name]).astype(np.float64)
            assert result.shape == expected.shape, name
            finite = np.isfinite(expected)
            assert (result[~finite] == expected[~finite]).all(), name
            assert abs(result[finite] - expected[finite]).max(initial=0) <= self.bound[name], name


OPTIONS = {"linear_attention": {"normalize": True}, "mlstm_sig": {"normalize": True},
           "mamba2": {"dt_softplus": True}, "mamba1": {"dt_softplus": True},
           "gated_delta_rule": {"qk_l2norm": True}, "short_conv": {"silu": True},
           "lightning": {"layer": 1, "layers": 4}}
_SIZES = {"batch_size": 2, "num_heads": 4, "num_heads_kv": 2, "num_heads_v": 4, "num_groups": 2,
          "head_dim": 6, "head_dim_v": 5, "num_channels": 8, "num_slots": 3, "num_past": 3}
_DECAYS = {"g", "w", "g_gamma", "A"}


def arrays(name, *, seqlen=5, dtype="float32", packed=False, seed=0, without=()):
    """Random arguments of an op by its table, states among them; packed: 2, 0 and seqlen rows."""
    op, rng = operators()[name], np.random.default_rng(seed)
    lengths = [2, 0, seqlen]
    sizes = {**_SIZES, "seqlen": seqlen, "total": sum(lengths)}
    if packed:
        sizes["batch_size"] = len(lengths)
    if name == "delta_rule" or "delta" in name or name in ("kda", "gla"):
        sizes["num_heads"] = 2 if "num_heads_v" in op.forward.tensor("v").shape else 4
    given = {}
    for row in op.inputs:
        if row.name in without:
            continue
        if row.name == "cu_seqlens":
            if packed:
                given[row.name] = np.cumsum([0, *lengths], dtype=np.int32)
            continue
        forms = [form.split() for form in row.shape.split(";")]
        entries = next((form[1:] for form in forms if packed and form[0] == "@cu_seqlens:"),
                       forms[-1])
        shape = [sizes[entry[:-2]] + 1 if entry.endswith("+1") else
                 int(entry) if entry.isdigit() else sizes[entry] for entry in entries]
        array = rng.standard_normal(shape)
        if row.name in _DECAYS:
            array = -abs(array)
        elif row.name == "beta":
            array = 1 / (1 + np.exp(-array))
        elif name == "linear_attention" and row.name in ("q", "k", "initial_norm"):
            array = abs(array) + 0.1
        elif name in ("mlstm_sig", "mlstm_exp", "slstm") and row.name == "initial_norm":
            array = abs(array) + 1
        elif name in ("rwkv7", "dplr_delta_rule", "iplr_delta_rule") and row.name in ("a", "b"):
            array = 0.3 * array
        elif name == "rwkv4" and row.name == "initial_state":
            array = abs(array)
        given[row.name] = array.astype(dtype)
    return given
