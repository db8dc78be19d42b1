# SPDX-License-Identifier: Apache-2.0
"""The GPU kernels, run on an emulated GPU (emulator/machine.hpp) through the whole library: driver
table, compiler, cache, launches, command line. Needs NVRTC (any machine can have it) and g++.

    tests/cuda/emulated_test.py                      problems of many options, some minutes
    tests/cuda/emulated_test.py --golden [ARCH ...]  all golden files, on the plans of these targets
                                                     (long: ./test.sh leaves it out)
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from hidden_rows import write_case, write_pages

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FLASHTILE_BUILD_DIR", ROOT / "build" / "release"))
CLI = BUILD / "flashtile"

# Each is another way through the kernels: tile shapes, copies, masks, splits, the second attempt.
PROBLEMS = {
    "80": [
        "attention_fwd:b1:hq2:sq70:sk130:d64:causal:bf16",
        "attention_fwd:b1:hq2:hkv1:sq65:sk90:d33:dv40:window_left=20:f16",
        "attention_fwd:b1:hq2:sq40:sk50:d20:softcap=5:alibi_slopes[hq]:bias[1,hq,sq,sk]",
        "attention_fwd:b2:hq8:hkv2:sq1:sk600:d64:bf16",
        "attention_fwd:b1:hq1:sq70:sk300:d64:softmax_scale=-30:bf16",
        "attention_fwd:b1:hq1:sq64:sk64:d16:mask='(q_idx - k_idx) % 3 == 0':weights:dropout_p=0.2",
        # Keys of 8 bits: few queries and many, pages with scales of their own, new keys.
        "attention_fwd:b3:hq4:hkv2:sq1:sk300:d64:ps16:np70:pp20:block_table:seqused_k={300,17,190}"
        ":k.e4m3:v.e4m3:k_scale[np,hkv]:v_scale[np,hkv]:bf16",
        "attention_fwd:b2:hq2:hkv1:sq40:sk130:d33:dv40:k.i8:v.i8:k_scale[b,hkv]:v_scale:causal:f16",
        "attention_fwd:b2:hq2:hkv1:sq20:sk70:d20:lines3:cache_batch_idx:k_scale[lines,hkv]:weights"
        ":seqused_k={40,66}:k_new:v_new:sn3:rotary_cos:rotary_sin:rp8:k.e4m3:v.e4m3:v_scale",
        "attention_bwd:b5:hq2:hkv1:sq70:sk140:d64:causal:bf16",
        "attention_bwd:b1:hq1:sq70:sk60:d96:dropout_p=0.2:softcap=5:f16",
        "attention_bwd:b2:hq1:cu_seqlens_q={0,30,60}:cu_seqlens_k={0,20,100}:d20:dv40:bf16",
        "attention_bwd:b1:hq2:hkv1:sq70:sk80:d20:causal:dropout_p=0.2:f32",
        "attention_bwd:b2:hq2:sq70:sk90:d16:bias[1,1,1,sk]:leftpad_k:deterministic:bf16",
        "attention_bwd:b1:hq2:sq40:sk50:d16:alibi_slopes[hq]:aux.t[90]:deterministic:f16"
        ":score='score + t[q_idx - k_idx + 50]'",
    ],
    "89": ["attention_fwd:b1:hq1:sq33:sk40:d300:dv300:f16",
           "attention_fwd:b1:hq2:sq40:sk70:d256:causal:bf16",
           "attention_fwd:b1:hq1:sq70:sk64:d300:dv280:ps16:block_table:k.i8:v.i8:k_scale[np,hkv]"
           ":v_scale[np,hkv]:f16",
           "attention_bwd:b1:hq1:sq40:sk70:d256:window_left=30:window_right=5:bf16"],
    # Splits that are clusters: some without keys, a sink, pages.
    "90": ["attention_fwd:b2:hq4:hkv1:sq2:sk1000:d128:causal:sink:lse:seqused_k={1000,1}:bf16",
           "attention_fwd:b1:hq4:hkv2:sq1:sk700:d80:dv72:ps16:np50:pp44:block_table:lse:f16",
           "attention_fwd:b1:hq1:sq130:sk130:d128:causal:bf16:max_logit",
           "attention_fwd:b1:hq1:sq70:sk100:d256:softcap=5:k.e4m3:v.e4m3:k_scale:v_scale:bf16",
           "attention_fwd:b1:hq2:sq130:sk200:d64:causal:alibi_slopes[hq]:bf16",
           # References in a line, for keys on both sides; in none, where rows are too far apart.
           "attention_fwd:b1:hq2:sq130:sk400:d64:alibi_slopes[hq]:lse:bf16",
           "attention_fwd:b1:hq1:sq200:sk400:d64:lse:bf16:score='score - 2.5 * q_idx'",
           "attention_fwd:b1:hq2:sq70:sk150:d64:softcap=30:bf16",
           "attention_fwd:b1:hq1:sq70:sk150:d64:softcap=1:alibi_slopes[hq]:max_logit:f16",
           "attention_fwd:b1:hq2:sq130:sk130:d32:causal:aux.t[hq,300]:bf16"
           ":score='score + t[head, q_idx - k_idx + seqlen_k]'",
           "attention_fwd:b1:hq1:sq130:sk130:d64:aux.t[200]:bf16"
           ":mask='t[q_idx] > t[k_idx] || k_idx < 2'",
           "attention_fwd:b2:hq3:sq130:sk160:d16:bf16:lse"
           ":mask='floordiv(q_idx, 50) == floordiv(k_idx, 50) && k_idx <= q_idx + query_offset'",
           "attention_fwd:b1:hq1:sq150:sk300:d16:bf16:mask='floordiv(q_idx + 60, 64) == "
           "floordiv(k_idx, 64) || d[k_idx] > 99 && abs(q_idx - k_idx) < 90':aux.d.i64[sk]",
           "attention_fwd:b1:hq1:sq70:sk80:d320:dv300:causal:bf16",
           "attention_bwd:b1:hq1:sq40:sk50:d16:aux.t[50]:mask='t[k_idx] > 0':bf16",
           "attention_bwd:b1:hq2:hkv1:sq70:sk130:d128:mask='k_idx % 3 != q_idx % 2':f16"],
}

# By name, for the portable kernel takes them too: ragged ends, more tiles than CTAs, rows
# without keys, groups of heads, options; softmax_scale makes tiles overflow that are then done
# again.
HOPPER_PROBLEMS = [
    "attention_fwd:b1:hq2:sq300:sk200:d64:lse:bf16",
    "attention_fwd:b2:hq4:hkv2:sq150:sk150:d128:causal:lse:bf16",
    "attention_fwd:b2:hq4:hkv2:sq300:sk330:d64:causal:lse:bf16",
    "attention_fwd:b1:hq2:sq130:sk300:d128:causal:alibi_slopes[hq]:max_logit:lse:f16",
    "attention_fwd:b1:hq1:sq200:sk60:d96:causal:sink:max_logit:lse:bf16",
    "attention_fwd:b1:hq2:sq100:sk400:d128:softmax_scale=40:lse:bf16",
    "attention_fwd:b1:hq1:sq70:sk100:d192:dv128:dropout_p=0.2:lse:bf16",
    "attention_fwd:b1:hq1:sq200:sk300:d256:causal:softmax_scale=9:lse:bf16",
    "attention_fwd:b2:hq2:sq70:sk100:d64:lines5:cache_batch_idx:bias[1,hq,sq,sk]:lse:bf16",
    "attention_fwd:b2:hq2:cu_seqlens_q={0,30,240}:cu_seqlens_k={0,40,190}:d64:softcap=5:lse:bf16",
    "attention_fwd:b5:hq80:cu_seqlens_q={0,1,1,4,9,40}:cu_seqlens_k={0,1,1,4,9,60}:d16:causal:lse"
    ":bf16",
    "attention_fwd:b3:hq2:hkv1:cu_seqlens_q={0,150,150,200}:cu_seqlens_k={0,100,160,300}:tq220"
    ":d128:causal:dropout_p=0.1:alibi_slopes[hq]:lse:bf16",
    "attention_fwd:b3:hq2:hkv1:sq70:sk150:d64:seqused_k={0,140,33}:leftpad_k={0,20,7}:causal:f16",
    "attention_fwd:b1:hq2:sq300:sk330:d64:window_left=40:window_right=0:alibi_slopes[hq]:lse:bf16",
    "attention_fwd:b1:hq2:sq200:sk330:d128:window_left=100:lse:bf16",
    "attention_fwd:b2:hq2:hkv1:cu_seqlens_q={0,150,300}:cu_seqlens_k={0,100,300}:d64"
    ":window_left=30:window_right=20:attention_chunk=70:lse:f16",
    # Some first products are tiny, later ones are not.
    "attention_fwd:b1:hq2:sq130:sk300:d128:softcap=16:softmax_scale=0.12:lse:bf16",
    # Later logits go far from the first ones, within blocks and slowly.
    "attention_fwd:b1:hq1:sq100:sk400:d128:score='score - 2.5 * k_idx':lse:bf16",
    "attention_fwd:b1:hq1:sq100:sk400:d64:score='score - 0.3 * k_idx':lse:bf16",
    "attention_fwd:b1:hq2:sq200:sk300:d64:aux.t.i32[300]:causal:lse:bf16"
    ":mask='t[q_idx] == t[k_idx] || k_idx < 9'",
    # Terms by distance that other warps make, for mapped blocks too.
    "attention_fwd:b1:hq2:sq200:sk330:d64:causal:aux.t[hq,600]:lse:bf16"
    ":score='score + t[head, q_idx - k_idx + seqlen_k]'",
    "attention_fwd:b1:hq1:sq130:sk300:d128:softmax_scale=40:aux.t[300]:lse:bf16"
    ":score='score - t[abs(q_idx - k_idx)]'",
    "attention_fwd:b1:hq1:sq70:sk200:d64:aux.t[300]:lse:bf16"
    ":score='score + 1e37 * t[abs(q_idx - k_idx)]'",
    # They grow from block to block, and behind the first ones overflow.
    "attention_fwd:b1:hq4:sq80:sk2100:d16:lse:bf16:score='score - 0.4 * abs(q_idx - k_idx)'",
    "attention_fwd:b2:hq1:cu_seqlens_q={0,150,240}:cu_seqlens_k={0,130,290}:d96:softcap=5"
    ":aux.t[300]:aux.w[300]:dropout_p=0.3:lse:f16:score='score + t[abs(q_idx - k_idx)]'"
    ":mask='w[k_idx] < w[q_idx] || k_idx < 2'",
    "attention_fwd:b1:hq1:sq130:sk200:d256:window_left=90:window_right=0:aux.t[300]:bf16"
    ":score='score + t[q_idx - k_idx + 200]'",
    # A bias that the copy engine takes.
    "attention_fwd:b2:hq1:sq130:sk200:d128:causal:bias.f16[1,hq,sq,sk]:softcap=5:lse:bf16",
    "attention_fwd:b1:hq1:sq130:sk200:d64:bias.bf16[b,1,sq,sk]:aux.w[200]:lse:f16"
    ":mask='w[k_idx] < w[q_idx] || k_idx < 2'",
    # More tiles than there are CTAs for: the longest first.
    "attention_fwd:b1:hq7:hkv1:sq300:sk70:d16:aux.t[300]:bf16"
    ":mask='t[q_idx] > t[k_idx] || k_idx < 2'",
    "attention_fwd:b2:hq2:sq300:sk300:d64:aux.t[300]:aux.w[2]:sink:lse:bf16"
    ":mask='(t[q_idx] > t[k_idx] || k_idx < 2) && k_idx <= q_idx + w[batch]'",
    "attention_fwd:b1:hq2:sq200:sk300:d128:block_rows=32:block_cols=48:block_counts:block_indices"
    ":lse:bf16",
    "attention_fwd:b2:hq2:sq140:sk280:ps16:np70:pp20:d64:block_table:seqused_k={280,70}:causal:lse"
    ":bf16",
    "attention_fwd:b2:hq2:sq140:sk512:ps256:np7:pp2:d128:block_table:seqused_k={300,90}:causal"
    ":bf16",
    # Columns of values in parts: all, a part that is not full, packed rows, tiles that are done
    # again, results through the buffer of queries.
    "attention_fwd:b1:hq2:hkv1:sq140:sk100:d64:dv512:causal:max_logit:lse:bf16",
    "attention_fwd:b2:hq1:cu_seqlens_q={0,30,70}:cu_seqlens_k={0,40,110}:d40:dv328"
    ":dropout_p=0.2:lse:bf16",
    "attention_fwd:b1:hq1:sq70:sk130:d64:dv600:softmax_scale=40:sink:lse:bf16",
    "attention_fwd:b1:hq1:sq70:sk100:d64:dv320:causal:aux.t[300]:lse:f16"
    ":score='score + t[q_idx - k_idx + 100]':mask='k_idx % 3 != 1'",
]


# Values that are the first columns of keys; splits, pages, masks, tiles that are done again.
LATENT_PROBLEMS = [
    "attention_fwd:b1:hq16:hkv1:sq2:sk530:d576:dv512:v=k:causal:seqused_k={520}:lse:bf16",
    "attention_fwd:b1:hq65:hkv1:sq1:sk120:ps16:np30:pp8:d384:dv320:v=k:block_table"
    ":seqused_k={110}:lse:bf16",
    "attention_fwd:b1:hq4:hkv1:sq2:sk140:d320:dv200:softmax_scale=40:v=k:mask='k_idx % 3 != 1'"
    ":sink:max_logit:lse:bf16",
]


def nvrtc_path():
    """What the library finds without a driver."""
    text = subprocess.run([CLI, "info"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"^nvrtc +[0-9.]+, (\S+)", text, re.MULTILINE)
    return found.group(1) if found else None


def environment(folder, nvrtc, arch, seed=0):
    return dict(os.environ, LD_LIBRARY_PATH=str(folder), FLASHTILE_EMULATOR_NVRTC=nvrtc,
                FLASHTILE_NVRTC=str(folder / "libnvrtc_emulated.so"),
                FLASHTILE_CACHE_DIR=str(folder / "cache"), FLASHTILE_EMULATOR_ARCH=arch,
                FLASHTILE_EMULATOR_SEED=str(seed))


def build_emulator(folder):
    subprocess.run([ROOT / "tests" / "cuda" / "emulator" / "build.sh", folder], check=True)


def check(folder, nvrtc, arch, arguments, seed=0, device="cuda", **variables):
    return subprocess.run([CLI, "check", "--device", device, *arguments], capture_output=True,
                          text=True, env=environment(folder, nvrtc, arch, seed) | variables,
                          cwd=ROOT)


class EmulatedTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.nvrtc = nvrtc_path()
        if cls.nvrtc is None or shutil.which("g++") is None:
            raise unittest.SkipTest("needs NVRTC and g++")
        cls.folder = Path(tempfile.mkdtemp(prefix="flashtile-emulated-"))
        build_emulator(cls.folder)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def test_problems_agree_with_the_reference(self):
        for arch, problems in PROBLEMS.items():
            with self.subTest(arch=arch):
                result = check(self.folder, self.nvrtc, arch, problems)
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
                # All of them were run, none refused.
                rows = re.findall(r"attention_..d_portable +(\d+) +0 +0 ", result.stdout)
                self.assertEqual(sum(map(int, rows)), len(problems), result.stdout)

    def test_parts_are_merged(self):
        problems = ["attention_merge:parts3:b2:sq5:hq3:dv140:lse:bf16",
                    "attention_merge:parts9:out_parts[parts,7,3,20]:lse_parts[parts,3,7]"
                    ":out[7,3,20]"]
        result = check(self.folder, self.nvrtc, "80", problems)
        self.assertRegex(result.stdout, r"attention_merge_portable +2 +0 +0 ", result.stderr)

    def test_hopper_forward_agrees_with_the_reference(self):
        result = check(self.folder, self.nvrtc, "90", HOPPER_PROBLEMS,
                       FLASHTILE_IMPL="attention_fwd_sm90")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        rows = re.findall(r"attention_fwd_sm90 +(\d+) +0 +0 ", result.stdout)
        self.assertEqual(sum(map(int, rows)), len(HOPPER_PROBLEMS), result.stdout)

    def test_latent_forward_agrees_with_the_reference(self):
        result = check(self.folder, self.nvrtc, "90", LATENT_PROBLEMS,
                       FLASHTILE_IMPL="attention_fwd_latent_sm90")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertRegex(result.stdout, r"attention_fwd_latent_sm90 +3 +0 +0 ")

    def test_what_masks_hide_may_hold_anything(self):
        cases = self.folder / "hidden"
        cases.mkdir()
        write_case(cases / "hidden_queries.safetensors", 40, 40, 16, query_offset=-7)
        write_case(cases / "hidden_keys.safetensors", 40, 70, 16, query_offset=12)
        write_case(cases / "hidden_pairs.safetensors", 40, 150, 16, query_offset=110,
                   mask="k_idx % 5 != 2", hidden=lambda j: j % 5 == 2)
        for arch in ["80", "90"]:
            result = check(self.folder, self.nvrtc, arch, ["--golden", str(cases)])
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertRegex(result.stdout, r"attention_fwd_sm90 +3 +0 +0 ")

    def attend(self, path, *options):
        result = subprocess.run([CLI, "attend", path, "--device", "cuda", "--check", *options],
                                capture_output=True, text=True,
                                env=environment(self.folder, self.nvrtc, "80"))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_a_second_device(self):
        # Of two, each with a context, handles and memory that the other may not use.
        problems = PROBLEMS["80"][:2] + PROBLEMS["80"][9:10]
        result = check(self.folder, self.nvrtc, "80", problems, device="cuda:1",
                       FLASHTILE_EMULATOR_DEVICES="2")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_scales_of_pages_may_lie_far_apart(self):
        path = self.folder / "pages.safetensors"
        # Blocks of eight pages, the last one first: each has scales ten times as large.
        write_pages(path, "I8", [(-1) ** n * 10 ** (1.5 - n / 8) for n in range(40)])
        self.attend(path)

    def test_hidden_keys_of_8_bits_may_be_nan(self):
        path = self.folder / "nan.safetensors"
        write_pages(path, "F8_E4M3", [0.5] * 9, hidden=lambda j: j % 5 == 2)
        self.attend(path, "--mask", "k_idx % 5 != 2")

    def test_order_of_threads_and_copies_does_not_matter(self):
        for problem in ["attention_fwd:b1:hq1:sq100:sk200:d64:bf16",
                        "attention_bwd:b1:hq1:sq100:sk100:d64:bf16"]:
            lines = set()
            for seed in range(4):
                result = check(self.folder, self.nvrtc, "80", [problem], seed)
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
                lines.add(result.stdout.splitlines()[0])
            self.assertEqual(len(lines), 1, lines)  # the same bits, so the same errors


def run_golden(archs):
    nvrtc = nvrtc_path()
    if nvrtc is None:
        print("skipped: there is no NVRTC")
        return 0
    with tempfile.TemporaryDirectory(prefix="flashtile-emulated-") as name:
        folder = Path(name)
        build_emulator(folder)
        status = 0
        for arch in archs or ["80", "89", "90"]:
            result = check(folder, nvrtc, arch, ["--golden", "tests/golden/attention",
                                                 "--max-unsupported", "1000"])
            print(f"sm_{arch}\n{result.stdout}{result.stderr}", flush=True)
            status |= result.returncode
        return status


if __name__ == "__main__":
    if "--golden" in sys.argv:
        sys.exit(run_golden([word for word in sys.argv[1:] if word.isdigit()]))
    unittest.main()
