// SPDX-License-Identifier: Apache-2.0
//
// A call like one before allocates nothing, whatever it asks for.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "counted_new.hpp"
#include "flashtile/merge.hpp"
#include "support/attention_runs.hpp"
#include "support/linear_problems.hpp"

namespace flashtile::test {
namespace {

/// A context whose memory for temporaries is the caller's.
struct OwnMemory {
  explicit OwnMemory(const std::string& implementation) {
    context.implementation = implementation;
    context.workspace = workspace.data();
    context.workspace_bytes = workspace.size();
  }
  std::vector<char> workspace = std::vector<char>(size_t{16} << 20);
  Context context = one_worker();
};

/// Allocations of the third of three calls.
template <class Call>
int64_t allocations_of(const Call& call) {
  for (int64_t repeat = 0; repeat < 3; ++repeat) {
    num_made = 0;
    call(repeat);
  }
  return num_made;
}

TEST(Allocations, OfARepeatedCallAreNone) {
  for (const std::string& implementation : all_kernels()) {
    OwnMemory memory(implementation);
    for (const int64_t seqlen : {200, 800}) {
      const Tensor q = Tensor::random(DType::kBF16, {1, seqlen, 4, 64}, 1);
      const Tensor k = Tensor::random(DType::kBF16, {1, seqlen, 2, 64}, 2);
      const Tensor out(DType::kBF16, {1, seqlen, 4, 64});
      const Tensor lse(DType::kF32, {1, 4, seqlen});
      const Tensor dq(DType::kBF16, {1, seqlen, 4, 64});
      const Tensor dk(DType::kBF16, {1, seqlen, 2, 64});
      const Tensor dv(DType::kBF16, {1, seqlen, 2, 64});
      AttentionOptions options;
      options.causal = true;
      EXPECT_EQ(allocations_of(
                    [&](int64_t) { attention_fwd(q, k, k, out, lse, options, memory.context); }),
                0)
          << implementation << " of " << seqlen;
      EXPECT_EQ(allocations_of([&](int64_t) {
                  attention_bwd(out, q, k, k, out, lse, dq, dk, dv, options, memory.context);
                }),
                0)
          << implementation << ", backward of " << seqlen;
    }
  }
}

/// Gradients that are slices of one buffer, as those of packed q, k and v.
TEST(Allocations, OfPackedGradientsAreNone) {
  const Tensor packed = Tensor::random(DType::kBF16, {2, 150, 8, 32}, 1);
  const Tensor gradients(DType::kBF16, {2, 150, 8, 32});
  const Tensor out = Tensor::random(DType::kBF16, {2, 150, 4, 32}, 2);
  const Tensor lse = Tensor::filled(DType::kF32, {2, 4, 150}, 5);
  const auto slice = [](const Tensor& whole, int64_t begin, int64_t end) {
    return whole.view().sliced(2, begin, end);
  };
  for (const std::string& implementation : all_kernels()) {
    OwnMemory memory(implementation);
    EXPECT_EQ(allocations_of([&](int64_t) {
                attention_bwd(out, slice(packed, 0, 4), slice(packed, 4, 6), slice(packed, 6, 8),
                              out, lse, slice(gradients, 0, 4), slice(gradients, 4, 6),
                              slice(gradients, 6, 8), {}, memory.context);
              }),
              0)
        << implementation;
  }
}

/// A prefill of few queries, whose keys are split.
TEST(Allocations, OfSplitKeysAreNone) {
  const Tensor q = Tensor::random(DType::kBF16, {1, 40, 2, 32}, 1);
  const Tensor k = Tensor::random(DType::kBF16, {1, 3000, 1, 32}, 2);
  const Tensor out(DType::kBF16, {1, 40, 2, 32});
  const Tensor lse(DType::kF32, {1, 2, 40});
  for (const std::string& implementation : all_kernels()) {
    OwnMemory memory(implementation);
    EXPECT_EQ(
        allocations_of([&](int64_t) { attention_fwd(q, k, k, out, lse, {}, memory.context); }), 0)
        << implementation;
  }
}

/// Decoding token by token into a paged cache, with rotary embedding, whose lengths grow and whose
/// tables change from call to call.
TEST(Allocations, OfDecodingAreNone) {
  constexpr int64_t kPages = 80, kBatch = 2;
  const Tensor q = Tensor::random(DType::kBF16, {kBatch, 1, 4, 64}, 1);
  const Tensor new_rows = Tensor::random(DType::kBF16, {kBatch, 1, 2, 64}, 2);
  const Tensor tables = Tensor::random(DType::kF32, {700, 16}, 3);
  const Tensor out(DType::kBF16, {kBatch, 1, 4, 64});
  for (const std::string& implementation : all_kernels()) {
    OwnMemory memory(implementation);
    for (const DType dtype : {DType::kBF16, DType::kI8, DType::kE4M3}) {
      const Tensor k = Tensor::random(dtype, {kPages, 16, 2, 64}, 4);
      const Tensor v = Tensor::random(dtype, {kPages, 16, 2, 64}, 5);
      constexpr int64_t kColumns = kPages / kBatch;
      const Tensor block_table(DType::kI32, {kBatch, kColumns});
      const Tensor seqused_k(DType::kI32, {kBatch});
      for (int64_t n = 0; n < kPages; ++n) {
        block_table.set({n / kColumns, n % kColumns}, static_cast<double>(n * 7 % kPages));
      }
      AttentionOptions options;
      options.block_table = block_table;
      options.seqused_k = seqused_k;
      options.k_new = new_rows;
      options.v_new = new_rows;
      options.rotary_cos = options.rotary_sin = tables;
      options.causal = true;
      EXPECT_EQ(allocations_of([&](int64_t repeat) {
                  seqused_k.set({0}, static_cast<double>(600 + repeat));
                  seqused_k.set({1}, static_cast<double>(40 + repeat));
                  attention_fwd(q, k, v, out, {}, options, memory.context);
                }),
                0)
          << implementation << ", " << dtype_name(dtype);
    }
  }
}

/// Inputs and results of attention with memory for all gradients.
struct Call {
  Call(DType dtype, int64_t batch, int64_t seqlen_q, int64_t seqlen_k, bool is_packed)
      : q(tensor(dtype, batch, seqlen_q, 4, is_packed, 1)),
        k(tensor(dtype, batch, seqlen_k, 2, is_packed, 2)),
        v(tensor(dtype, batch, seqlen_k, 2, is_packed, 3)),
        dout(tensor(dtype, batch, seqlen_q, 4, is_packed, 4)),
        out(q.copy()),
        dq(q.copy()),
        dk(k.copy()),
        dv(v.copy()),
        lse(is_packed ? Tensor(DType::kF32, {4, batch * seqlen_q})
                      : Tensor(DType::kF32, {batch, 4, seqlen_q})) {}

  static Tensor tensor(DType dtype, int64_t batch, int64_t seqlen, int64_t num_heads,
                       bool is_packed, uint64_t seed) {
    if (is_packed) return Tensor::random(dtype, {batch * seqlen, num_heads, 32}, seed);
    return Tensor::random(dtype, {batch, seqlen, num_heads, 32}, seed);
  }

  void forward(const Context& context) const { attention_fwd(q, k, v, out, lse, options, context); }
  void backward(const Context& context) const {
    attention_bwd(dout, q, k, v, out, lse, dq, dk, dv, options, context);
  }

  Tensor q, k, v, dout, out, dq, dk, dv, lse;
  AttentionOptions options;
  std::vector<Tensor> owned;  ///< of the options
};

/// An option that calls may have together with others.
struct Feature {
  std::string name;
  std::function<void(Call&)> add;
};

constexpr int64_t kBatch = 2, kSeqlenQ = 100, kSeqlenK = 150;

const Tensor& own(Call& call, const Tensor& tensor) { return call.owned.emplace_back(tensor); }

void add_block_lists(Call& call) {
  constexpr int64_t kRows = 16, kCols = 32;
  constexpr int64_t kNumRows = (kSeqlenQ + kRows - 1) / kRows;
  const Tensor counts(DType::kI32, {1, 4, kNumRows});
  const Tensor indices(DType::kI32, {1, 4, kNumRows, 3});
  for (int64_t h = 0; h < 4; ++h) {
    for (int64_t m = 0; m < kNumRows; ++m) {
      counts.set({0, h, m}, static_cast<double>(1 + (h + m) % 3));
      for (int64_t n = 0; n < 3; ++n) {
        indices.set({0, h, m, n}, static_cast<double>((h + m + n) % 4));
      }
    }
  }
  call.options.block_counts = own(call, counts);
  call.options.block_indices = own(call, indices);
  call.options.block_rows = kRows;
  call.options.block_cols = kCols;
}

void add_aux(Call& call, const std::string& name, const Tensor& tensor, const Tensor& gradient) {
  call.options.aux.push_back({name, own(call, tensor), own(call, gradient)});
}

void add_score(Call& call) {
  call.options.score = "score * gains[head, q_idx % 7] + param.shift * far[k_idx]";
  call.options.params = {{"shift", 0.25}};
  add_aux(call, "gains", Tensor::random(DType::kF32, {4, 7}, 5), Tensor(DType::kF32, {4, 7}));
  add_aux(call, "far", Tensor::random(DType::kF32, {kSeqlenK}, 6), Tensor(DType::kF32, {kSeqlenK}));
}

void add_line(Call& call) {
  call.options.score = "score + distances[q_idx - k_idx + 200]";
  add_aux(call, "distances", Tensor::random(DType::kF32, {400}, 5), Tensor(DType::kF32, {400}));
}

void add_mask(Call& call) {
  call.options.mask =
      "documents[batch, q_idx] == documents[batch, k_idx] && k_idx - q_idx <= reach[head] "
      "&& (k_idx + q_idx) % 5 != 3";
  std::vector<int64_t> reach = {90, 80, 70, 200};
  const Tensor documents(DType::kI32, {kBatch, kSeqlenK});
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t i = 0; i < kSeqlenK; ++i) documents.set({b, i}, static_cast<double>(i / 40));
  }
  add_aux(call, "documents", documents, {});
  add_aux(call, "reach", Tensor::ints(reach), {});
}

void add_bias(Call& call, int64_t batch, int64_t heads, int64_t rows) {
  call.options.bias = own(call, Tensor::random(DType::kF32, {batch, heads, rows, kSeqlenK}, 7));
  call.options.dbias = own(call, Tensor(DType::kF32, {batch, heads, rows, kSeqlenK}));
}

/// Options of all kinds; `packed` is for calls whose sequences are packed.
std::vector<Feature> all_features(bool is_packed) {
  std::vector<Feature> features = {
      {"block lists", add_block_lists},
      {"score", add_score},
      {"line", add_line},
      {"mask", add_mask},
      {"bias of each head", [](Call& call) { add_bias(call, kBatch, 4, kSeqlenQ); }},
      {"bias of all heads", [](Call& call) { add_bias(call, 1, 1, kSeqlenQ); }},
      {"bias of keys", [](Call& call) { add_bias(call, kBatch, 4, 1); }},
      {"dropout",
       [](Call& call) {
         call.options.dropout_p = 0.2;
         call.options.dropout_seed = 3;
       }},
      {"slopes and sinks",
       [](Call& call) {
         call.options.alibi_slopes = own(call, Tensor::filled(DType::kF32, {4}, 0.1));
         call.options.dalibi_slopes = own(call, Tensor(DType::kF32, {4}));
         call.options.sink = own(call, Tensor::filled(DType::kF32, {4}, 0.5));
         call.options.dsink = own(call, Tensor(DType::kF32, {4}));
       }},
      {"window and softcap",
       [](Call& call) {
         call.options.window_left = 40;
         call.options.causal = true;
         call.options.softcap = 20;
       }},
      {"large scores", [](Call& call) { call.options.softmax_scale = 60; }},
  };
  if (!is_packed) return features;
  const auto no_bias = [](const Feature& feature) { return feature.name.starts_with("bias"); };
  std::erase_if(features, no_bias);  // has no place for packed sequences
  return features;
}

Call call_with(std::span<const Feature> features, DType dtype, bool is_packed) {
  Call call(dtype, kBatch, kSeqlenQ, kSeqlenK, is_packed);
  if (is_packed) {
    call.options.cu_seqlens_q = own(call, Tensor::ints({0, 100, 200}));
    call.options.cu_seqlens_k = own(call, Tensor::ints({0, 150, 300}));
  }
  for (const Feature& feature : features) feature.add(call);
  return call;
}

void expect_none(const Call& call, const std::string& implementation, const std::string& what) {
  OwnMemory memory(implementation);
  EXPECT_EQ(allocations_of([&](int64_t) { call.forward(memory.context); }), 0)
      << implementation << " with " << what;
  EXPECT_EQ(allocations_of([&](int64_t) { call.backward(memory.context); }), 0)
      << implementation << ", backward with " << what;
}

TEST(Allocations, OfEachOptionAreNone) {
  for (const std::string& implementation : all_kernels()) {
    for (const bool is_packed : {false, true}) {
      for (const Feature& feature : all_features(is_packed)) {
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          expect_none(call_with(std::span(&feature, 1), dtype, is_packed), implementation,
                      feature.name + (is_packed ? ", packed" : ""));
        }
      }
    }
  }
}

TEST(Allocations, OfManyOptionsTogetherAreNone) {
  for (const std::string& implementation : all_kernels()) {
    for (const char* without : {"line", "score"}) {
      std::vector<Feature> features = all_features(/*is_packed=*/false);
      std::erase_if(features, [&](const Feature& feature) {
        return feature.name == without || feature.name == "large scores" ||
               (feature.name.starts_with("bias") && feature.name != "bias of all heads");
      });
      expect_none(call_with(features, DType::kBF16, /*is_packed=*/false), implementation,
                  std::string("all but ") + without);
    }
  }
}

/// What tensors of expressions and lists hold is read anew by each call, and where they lie.
TEST(Allocations, AreNoneWhereTensorsChange) {
  Call call = call_with({}, DType::kF32, /*is_packed=*/false);
  add_score(call);
  add_mask(call);
  add_block_lists(call);
  std::vector<Call> others;
  for (int64_t n = 0; n < 4; ++n) {
    Call& other = others.emplace_back(call_with({}, DType::kF32, /*is_packed=*/false));
    add_score(other);
    add_mask(other);
    add_block_lists(other);
    for (const AuxTensor& aux : other.options.aux) {
      if (aux.name == "gains") set(aux.tensor, {1, 3}, static_cast<double>(n));
      if (aux.name == "documents") set(aux.tensor, {0, 20 + 3 * n}, 2);
      if (aux.name == "reach") set(aux.tensor, {2}, static_cast<double>(50 + n));
    }
    set(other.options.block_counts, {0, 2, 1}, static_cast<double>(n % 3));
  }
  for (const std::string& implementation : all_kernels()) {
    OwnMemory memory(implementation);
    EXPECT_EQ(allocations_of([&](int64_t repeat) {
                const Call& other = others[static_cast<size_t>(repeat)];
                other.forward(memory.context);
                other.backward(memory.context);
              }),
              0)
        << implementation;
    // A call of its own, on a thread that remembers none, has the same bits.
    const Call& last = others[2];
    const Tensor out = last.out.copy(), dq = last.dq.copy();
    const Tensor dgains = Tensor(last.options.aux[0].gradient).copy();
    std::thread([&] {
      last.forward(memory.context);
      last.backward(memory.context);
    }).join();
    EXPECT_TRUE(same_bits(out, last.out)) << implementation;
    EXPECT_TRUE(same_bits(dq, last.dq)) << implementation;
    EXPECT_TRUE(same_bits(dgains, last.options.aux[0].gradient)) << implementation;
  }
}

/// One query a sequence and new keys, with what decoding takes itself and what it leaves to packed
/// blocks.
TEST(Allocations, OfDecodingWithOptionsAreNone) {
  const Tensor seqused_k = Tensor::ints({60, 75});
  const Tensor tables = Tensor::random(DType::kF32, {kSeqlenK, 16}, 8);
  for (const std::string& implementation : all_kernels()) {
    OwnMemory memory(implementation);
    for (const Feature& feature : all_features(/*is_packed=*/false)) {
      if (feature.name.starts_with("bias of") && feature.name != "bias of keys") continue;
      for (const DType dtype : {DType::kBF16, DType::kI8, DType::kE4M3}) {
        Call call(DType::kBF16, kBatch, 1, kSeqlenK, /*is_packed=*/false);
        call.k = Tensor::random(dtype, {kBatch, kSeqlenK, 2, 32}, 2);
        call.v = Tensor::random(dtype, {kBatch, kSeqlenK, 2, 32}, 3);
        feature.add(call);
        if (call.options.block_counts) {
          call.options.block_counts = call.options.block_counts.sliced(2, 0, 1);
          call.options.block_indices = call.options.block_indices.sliced(2, 0, 1);
        }
        const Tensor new_rows = Tensor::random(DType::kBF16, {kBatch, 1, 2, 32}, 9);
        call.options.seqused_k = seqused_k;
        call.options.k_new = call.options.v_new = new_rows;
        call.options.rotary_cos = call.options.rotary_sin = tables;
        EXPECT_EQ(allocations_of([&](int64_t) { call.forward(memory.context); }), 0)
            << implementation << " with " << feature.name << ", " << dtype_name(dtype);
      }
    }
  }
}

TEST(Allocations, OfMergingAreNone) {
  const Tensor out_parts = Tensor::random(DType::kBF16, {3, 2, 5, 4, 32}, 1);
  const Tensor lse_parts = Tensor::random(DType::kF32, {3, 2, 4, 5}, 2);
  const Tensor out(DType::kBF16, {2, 5, 4, 32});
  const Tensor lse(DType::kF32, {2, 4, 5});
  for (const std::string& implementation : all_kernels()) {
    OwnMemory memory(implementation);
    EXPECT_EQ(allocations_of([&](int64_t) {
                attention_merge(out_parts, lse_parts, out, lse, memory.context);
              }),
              0)
        << implementation;
  }
}

TEST(Allocations, OfLinearOpsAreNone) {
  for_each_linear_case([](const LinearCase& one) {
    std::vector<std::string> texts = {one.step()};
    for (const char* lengths : {"b2:t70", "cu_seqlens={0,30,70}"}) {
      texts.push_back(one.forward(lengths));
      texts.push_back(one.backward(lengths));
    }
    for (const std::string& text : texts) {
      const cli::OwnedCall owned = linear_call(text);
      for (const std::string& implementation : owned.call.spec().implementations()) {
        if (implementation.ends_with("_reference")) continue;
        OwnMemory memory(implementation);
        EXPECT_EQ(allocations_of([&](int64_t) { owned.call.run(memory.context); }), 0)
            << implementation << ": " << text;
      }
    }
  });
}

}  // namespace
}  // namespace flashtile::test
