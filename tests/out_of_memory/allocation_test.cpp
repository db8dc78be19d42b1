// SPDX-License-Identifier: Apache-2.0
//
// Every allocation of a call may fail. The program's operator new does so on demand.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <new>

#include "flashtile/error.hpp"
#include "flashtile/gpu.hpp"
#include "flashtile/merge.hpp"
#include "support/attention_runs.hpp"

namespace {

/// Allocations until one fails; negative: none does.
thread_local int64_t num_left = -1;
thread_local int64_t num_made = 0;

void* allocate(size_t bytes, size_t alignment) noexcept {
  ++num_made;
  if (num_left == 0) return nullptr;
  if (num_left > 0) --num_left;
  const size_t whole = (bytes + alignment - 1) / alignment * alignment;
  return std::aligned_alloc(alignment, whole == 0 ? alignment : whole);
}

void* allocate_or_throw(size_t bytes, size_t alignment) {
  void* memory = allocate(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

/// Out of line: GCC 14 takes a visible free for one that does not belong to `new`.
[[gnu::noinline]] void release(void* memory) noexcept { std::free(memory); }

constexpr size_t kUsual = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

}  // namespace

void* operator new(size_t bytes) { return allocate_or_throw(bytes, kUsual); }
void* operator new[](size_t bytes) { return allocate_or_throw(bytes, kUsual); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, static_cast<size_t>(alignment));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, kUsual); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, kUsual);
}
void* operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, size_t) noexcept { release(memory); }
void operator delete[](void* memory, size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { release(memory); }

namespace flashtile::test {
namespace {

/// Calls what() until it gets through, with one more allocation granted each time. What does not
/// get through is an Error of the op.
template <class What>
void expect_errors_only(const std::string& op, const What& what) {
  what();  // what is made once a process is there
  num_made = 0;
  what();
  const int64_t num_needed = num_made;
  int64_t num_failed = 0;
  for (int64_t granted = 0; granted < num_needed; ++granted) {
    try {
      num_left = granted;
      what();
      num_left = -1;
    } catch (const Error& error) {
      num_left = -1;
      ++num_failed;
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory) << error.what();
      EXPECT_TRUE(std::string(error.what()).starts_with(op + ": ")) << error.what();
    } catch (...) {
      num_left = -1;
      ADD_FAILURE() << "no Error when only " << granted << " allocations are granted";
      return;
    }
  }
  EXPECT_GT(num_failed, 0) << op;
}

TEST(Allocations, ThatFailAreErrorsOfAttention) {
  const Tensor slopes = Tensor::random(DType::kF32, {70}, 5);
  const Tensor documents = Tensor::ints(std::vector<int64_t>(90, 1));
  const Tensor gradient(DType::kF32, {70});
  const Tensor q = Tensor::random(DType::kF32, {1, 70, 2, 16}, 1);
  const Tensor k = Tensor::random(DType::kF32, {1, 90, 2, 16}, 2);
  const Tensor out(DType::kF32, {1, 70, 2, 16});
  const Tensor lse(DType::kF32, {1, 2, 70});
  const Tensor dq(DType::kF32, {1, 70, 2, 16});
  const Tensor dk(DType::kF32, {1, 90, 2, 16});
  const Tensor dv(DType::kF32, {1, 90, 2, 16});
  AttentionOptions options;
  options.score = "score * t[q_idx]";
  options.mask = "documents[q_idx] == documents[k_idx]";
  options.aux = {{"t", slopes, gradient}, {"documents", documents, {}}};
  options.causal = true;
  for (const std::string& implementation : all_implementations()) {
    Context context = one_worker();
    context.implementation = implementation;
    attention_fwd(q, k, k, out, lse, options, context);
    const Tensor expected = out.copy();
    expect_errors_only("attention_fwd",
                       [&] { attention_fwd(q, k, k, out, lse, options, context); });
    expect_errors_only("attention_bwd", [&] {
      attention_bwd(out, q, k, k, out, lse, dq, dk, dv, options, context);
    });
    expect_errors_only("attention_fwd",
                       [&] { explain_attention_fwd(q, k, k, out, lse, options, context); });
    attention_fwd(q, k, k, out, lse, options, context);  // and the next call is right
    EXPECT_TRUE(same_bits(out, expected)) << implementation;
  }
}

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

TEST(Allocations, ThatFailAreErrorsOfMerge) {
  const Tensor parts = Tensor::random(DType::kF32, {3, 1, 5, 2, 8}, 1);
  const Tensor lse_parts = Tensor::random(DType::kF32, {3, 1, 2, 5}, 2);
  const Tensor out(DType::kF32, {1, 5, 2, 8});
  expect_errors_only("attention_merge",
                     [&] { attention_merge(parts, lse_parts, out, {}, one_worker()); });
}

TEST(Allocations, ThatFailAreErrorsOfProblemTexts) {
  const std::string text = "attention_fwd:b2:sq9:d64";
  EXPECT_NE(explain(text).chosen, "");
  warmup(text);
  const std::function<void()> calls[] = {[&] { explain(text); }, [&] { warmup(text); }};
  for (const auto& call : calls) {
    int num_failed = 0;
    for (int64_t granted = 0; granted < 200; ++granted) {
      try {
        num_left = granted;
        call();
        num_left = -1;
      } catch (const Error& error) {
        num_left = -1;
        ++num_failed;
        EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory) << error.what();
      } catch (...) {
        num_left = -1;
        ADD_FAILURE() << "no Error when only " << granted << " allocations are granted";
      }
    }
    EXPECT_GT(num_failed, 0);
  }
}

}  // namespace
}  // namespace flashtile::test
