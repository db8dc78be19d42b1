// SPDX-License-Identifier: Apache-2.0
//
// What the forward and backward launchers of the CPU share: the sequences of a call, its masks, the
// score rules of each head, and the (sequence, kv head) pairs in waves that fit the workspace.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/kept_list.hpp"
#include "core/workspace.hpp"
#include "cpu/cpu_info.hpp"
#include "cpu/kernels/attention_kernels.hpp"
#include "cpu/kernels/linear_kernels.hpp"
#include "cpu/kernels/serving_kernels.hpp"
#include "cpu/score_programs.hpp"
#include "ops/attention/implementations.hpp"
#include "ops/attention/mask.hpp"
#include "ops/attention/sequences.hpp"

namespace flashtile::cpu {

/// Rows of a query block: a multiple of 6, the rows of a register tile.
inline constexpr int64_t kBlockM = 96;
/// Packed keys beyond one pair a worker, so that waves of small pairs are worth their barriers.
inline constexpr int64_t kExtraBytes = int64_t{1} << 20;

/// The kernels of one instruction set, and how its implementations are called.
struct IsaEntry {
  Isa isa;
  std::string_view forward_name;
  std::string_view backward_name;
  const AttentionKernels* kernels;
  std::string_view merge_name;
  const ServingKernels* serving;
  const LinearKernels* linear;
  /// The delta rule's backward in chunks; null where there is none.
  const ScalarDecayOperandKernels* delta_floats = nullptr;
  /// Over bf16 pairs, for bf16 inputs; null where the set has no dot product for them.
  const OperandKernels* attention_pairs = nullptr;
  const ScalarDecayOperandKernels* scalar_decay_pairs = nullptr;
  const ScalarDecayOperandKernels* delta_pairs = nullptr;
  const VectorDecayPairKernels* vector_decay_pairs = nullptr;
  const DecodeKernels* decode_pairs = nullptr;
  /// `attention_pairs` for batch_invariant: its sums are those of decoding, to the bit.
  const OperandKernels* invariant_pairs = nullptr;
};

/// The operands that a problem is computed with: bf16 pairs for bf16 inputs where there are any,
/// otherwise floats.
const OperandKernels& operands_of(const IsaEntry& isa, const AttentionProblem& problem);

/// One (sequence, kv head): what shares packed keys and values.
struct Pair {
  const Sequence* sequence;
  int64_t head_kv;
};

/// Pairs by how they are worked on: numbers of AttentionCall::pairs().
struct PairOrder {
  KeptList<size_t> alone;   ///< by one worker each, from packing to storing; the largest first
  KeptList<size_t> shared;  ///< by all workers together, in waves
};

/// What masks and expressions of a problem become for the kernels. Its form follows from the
/// problem, what it reads from the tensors of a call.
struct CallVariant {
  CallVariant(const AttentionProblem& problem, const AttentionArgs& args)
      : mask(problem, args), programs(problem, args, mask.rest()) {}

  AttentionMask mask;
  ScorePrograms programs;
};

/// Details of a plan: variants that its calls have left, for the next ones, so that expressions are
/// compiled once. Each of several calls at a time has its own.
class KeptVariants {
 public:
  /// The variant of one call.
  class Use {
   public:
    Use(const AttentionProblem& problem, const AttentionPlan& plan, const AttentionArgs& args);
    ~Use() { kept_.put_back(std::move(variant_)); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    const CallVariant* operator->() const { return variant_.get(); }

   private:
    const KeptVariants& kept_;
    std::unique_ptr<CallVariant> variant_;
  };

 private:
  std::unique_ptr<CallVariant> take() const;
  void put_back(std::unique_ptr<CallVariant> variant) const;

  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<CallVariant>> idle_;
  mutable size_t num_used_ = 0;
};

class AttentionCall {
 public:
  AttentionCall(const AttentionProblem& problem, const AttentionPlan& plan,
                const AttentionArgs& args);

  const AttentionProblem& problem() const { return problem_; }
  const AttentionArgs& args() const { return args_; }
  const KeptList<Sequence>& sequences() const { return sequences_; }
  const AttentionMask& mask() const { return variant_->mask; }
  /// All pairs, sequence by sequence.
  const KeptList<Pair>& pairs() const { return pairs_; }

  int64_t head_of(const Pair& pair, int64_t member) const {
    return pair.head_kv * problem_.group_size() + member;
  }

  /// About how many multiply-adds the call takes where no mask hides anything, with what reading
  /// keys and values takes counted as such.
  double work() const;

  /// Pairs alone where that keeps all workers busy to the end: no worker waits for another, and
  /// what is packed stays in its cache. The rest is shared: a remainder, and pairs that would still
  /// run when all others have ended.
  void order_pairs(int64_t num_workers, PairOrder* order) const;

  const ScorePrograms& programs() const { return variant_->programs; }
  /// Scratch that the strip programs of a block need.
  int64_t program_bytes(const AttentionKernels& kernels) const;

  /// Throws Error when a score has read an aux tensor out of its range since the call began.
  void check_index_errors() const;

 private:
  const AttentionProblem& problem_;
  const AttentionArgs& args_;
  KeptVariants::Use variant_;
  KeptList<Sequence> sequences_;
  KeptList<Pair> pairs_;

  friend class HeadRules;
  mutable std::mutex mutex_;
  mutable std::string out_of_range_;  ///< name of an aux tensor that was read beyond its end
};

/// Scratch of the strip programs, for each worker. It is small, depends on the texts of
/// expressions, and so is no part of a plan's workspace.
class ProgramScratch {
 public:
  ProgramScratch(const AttentionCall& call, const AttentionKernels& kernels, int64_t num_workers)
      : bytes_(call.program_bytes(kernels)) {
    if (bytes_ > 0) memory_.resize(static_cast<size_t>(num_workers * bytes_ + 64));
  }

  char* of(int64_t worker) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    return memory_.data() + (64 - address % 64) % 64 + worker * bytes_;
  }

 private:
  int64_t bytes_;  ///< a multiple of 64
  KeptList<char> memory_;
};

/// The score rules of one head as the kernels take them. `mask` must outlive them.
class HeadRules {
 public:
  HeadRules(const AttentionCall& call, const Sequence& sequence, int64_t head,
            const HeadMask& mask);
  ~HeadRules();
  HeadRules(const HeadRules&) = delete;
  HeadRules& operator=(const HeadRules&) = delete;

  const ScoreRules* get() const { return &rules_; }

 private:
  const AttentionCall& call_;
  ScoreRules rules_{};
  int32_t score_error_ = 0;
  int32_t guarded_score_error_ = 0;
};

/// Row addresses [begin, end) of rows that lie as `rows` says. Lists of a task are thread_local:
/// each worker allocates them once.
template <class AnyRows>
void row_addresses(const AnyRows& rows, int64_t begin, int64_t end, std::vector<void*>* out) {
  out->clear();
  for (int64_t i = begin; i < end; ++i) out->push_back(rows.row(i));
}

/// Distance of neighbours in a row, in elements.
template <class AnyRows>
int64_t element_stride(const AnyRows& rows, DType dtype) {
  return rows.element_stride / dtype_bytes(dtype);
}

/// Packs keys [begin, end) of a pair, K and V, as one block of block_n rows. Returns whether the
/// tensor that `pack` looks at (see PackRequest) holds a NaN or infinity.
bool pack_keys(const AttentionCall& call, void (*pack)(const PackRequest&), int64_t block_n,
               const Pair& pair, int64_t begin, int64_t end, char* destination);

/// A sequence that a plan's workspace has no room for: the plan is wrong.
[[noreturn]] void fail_to_fit(std::string_view op);

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// The smallest width of a key block that holds this many keys.
inline int64_t whole_columns(int64_t seqlen_k) {
  constexpr int64_t kColumns = 32;  // of dropout's random bits, and more than a vector
  return std::max<int64_t>(1, ceil_div(seqlen_k, kColumns)) * kColumns;
}

void launch_attention_fwd(const IsaEntry& isa, const AttentionProblem& problem,
                          const AttentionPlan& plan, const AttentionArgs& args,
                          const Context& context);
AttentionPlan plan_attention_fwd(const IsaEntry& isa, const AttentionProblem& problem);

void launch_attention_bwd(const IsaEntry& isa, const AttentionProblem& problem,
                          const AttentionPlan& plan, const AttentionArgs& args,
                          const Context& context);
AttentionPlan plan_attention_bwd(const IsaEntry& isa, const AttentionProblem& problem);

}  // namespace flashtile::cpu
