// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/finish.hpp"

#include <algorithm>
#include <limits>

#include "core/element.hpp"
#include "variant/philox.hpp"

namespace flashtile {

void fill_zero(const TensorView& tensor) {
  if (!tensor || tensor.numel() == 0) return;
  // Trailing dimensions that lie without gaps are one stretch of memory.
  TensorView outer = tensor;
  int64_t bytes = dtype_bytes(tensor.dtype);
  int64_t stride = 1;
  while (outer.ndim > 0) {
    const auto last = static_cast<size_t>(outer.ndim - 1);
    if (outer.shape[last] != 1 && outer.strides[last] != stride) break;
    stride *= outer.shape[last];
    bytes *= outer.shape[last];
    --outer.ndim;
  }
  for_each_element(outer, [&](int64_t, char* address) { std::fill_n(address, bytes, char{0}); });
}

void fill_uncovered_rows(const AttentionProblem& problem, const AttentionArgs& args) {
  if (!problem.is_packed_q) return;
  const int64_t covered = element<int32_t>(args.cu_seqlens_q, {problem.batch_size});
  if (covered == problem.total_q) return;
  fill_zero(args.out.sliced(0, covered, problem.total_q));
  if (!args.lse) return;
  for_each_element(args.lse.sliced(1, covered, problem.total_q), [&](int64_t, char* address) {
    store_float(address, args.lse.dtype, -std::numeric_limits<double>::infinity());
  });
}

void fill_debug_outputs(const AttentionProblem& problem, const AttentionArgs& args,
                        std::span<const Sequence> sequences) {
  fill_zero(args.weights);
  fill_zero(args.dropout_mask);
  if (!args.dropout_mask) return;
  const Dropout& dropout = problem.dropout;
  for (const Sequence& sequence : sequences) {
    for (int64_t h = 0; h < problem.num_heads; ++h) {
      const Rows rows = weight_rows(args.dropout_mask, sequence, h);
      const auto batch_head = static_cast<uint32_t>(sequence.batch_idx * problem.num_heads + h);
      for (int64_t i = 0; i < sequence.seqlen_q; ++i) {
        for (int64_t j = 0; j < sequence.seqlen_k; ++j) {
          const bool is_kept = !dropout.is_on ||
                               variant::dropout_bits(dropout.seed, dropout.offset, batch_head,
                                                     static_cast<uint32_t>(i),
                                                     static_cast<uint32_t>(j)) >= dropout.threshold;
          *(rows.row(i) + (j + sequence.leftpad) * rows.element_stride) =
              static_cast<char>(is_kept);
        }
      }
    }
  }
}

}  // namespace flashtile
