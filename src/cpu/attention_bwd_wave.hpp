// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "cpu/attention_call.hpp"
#include "cpu/attention_daux.hpp"
#include "cpu/pair_waves.hpp"

namespace flashtile::cpu {

/// Sizes of what the backward packs and sums for one pair.
struct BwdShape {
  BwdShape(const OperandKernels& kernels, const AttentionProblem& problem,
           const AttentionPlan& plan);

  /// Workspace of a pair with these lengths.
  int64_t pair_bytes(int64_t seqlen_q, int64_t seqlen_k) const;

  BlockLayout queries, keys;
  int64_t block_m, block_n;
  int64_t group_size;
  int64_t num_splits;
  int64_t dq_ld, dk_ld, dv_ld;
  int64_t kernel_bytes;   ///< of the kernel's scratch
  int64_t scratch_bytes;  ///< of a worker: the kernel's, and dK and dV of a key block
};

/// lse and delta = dout . out - dlse of every query, by sequence, head and row.
struct RowStats {
  KeptList<int64_t> first_row;  ///< by sequence: index of (head 0, row 0)
  KeptList<float> lse;
  KeptList<float> delta;
  /// True where dout . out is summed as P dP of all keys: delta begins as -dlse, and each wave adds
  /// the rows of its pairs.
  bool sums_delta = false;
  /// What exp(s - lse) is multiplied by, so that the weights of a row with a large lse add up to 1
  /// although lse was rounded; filled wave by wave. Empty where no row needs it.
  KeptList<float> factors;
  KeptList<double> weight_sums;

  size_t index(const Sequence& sequence, int64_t head) const {
    return static_cast<size_t>(first_row[static_cast<size_t>(sequence.batch_idx)] +
                               head * sequence.seqlen_q);
  }
};

void make_row_stats(const AttentionCall& call, const AttentionKernels& kernels,
                    const Context& context, RowStats* stats);

/// True where the lse of a row is so large that its rounding shows.
bool is_large_lse(float lse);

/// The sinks' gradient by sequence and head, when delta is complete.
void find_sink_gradients(const AttentionCall& call, const RowStats& stats,
                         KeptList<double>* gradients);

/// A pair of the wave.
struct BwdMember {
  Pair pair;
  int64_t pair_idx = 0;
  const HeadMask* masks = nullptr;  ///< by head of the group
  char* q_blocks = nullptr;         ///< (group, query blocks)
  char* k_blocks = nullptr;         ///< (key blocks)
  uint8_t* k_has_nonfinite = nullptr;
  float* dq = nullptr;       ///< (splits, group, seqlen_q, dq_ld)
  double* dalibi = nullptr;  ///< (splits, group), where it is wanted
  int64_t num_m = 0, num_n = 0;

  const char* q_block(const BwdShape& shape, int64_t member, int64_t m) const {
    return q_blocks + (member * num_m + m) * shape.queries.block_bytes;
  }
  float* dq_of(const BwdShape& shape, int64_t split, int64_t member) const {
    return dq + (split * shape.group_size + member) * pair.sequence->seqlen_q * shape.dq_ld;
  }
};

/// Packs query block m (Q and dO) into `destination`.
void pack_query_block(const AttentionCall& call, const OperandKernels& kernels,
                      const RowStats& stats, const AttentionPlan& plan, const Sequence& sequence,
                      int64_t head, int64_t m, char* destination);

/// What a block of a head is made of but its queries, its keys, and where its sums go.
BwdBlock make_bwd_block(const AttentionProblem& problem, const BwdShape& shape,
                        const RowStats& stats, const Sequence& sequence, int64_t head,
                        const HeadRules& rules, std::span<const BlockRun> runs);

using BwdWave = PairWave<BwdMember>;

class BwdLaunch {
 public:
  BwdLaunch(const IsaEntry& isa, const AttentionCall& call, const AttentionPlan& plan,
            const Context& context);

  void run();

 private:
  void run_pairs();
  size_t make_wave(const KeptList<size_t>& order, size_t begin, size_t end, BwdWave* wave);
  void run_wave(BwdWave& wave);
  void pack_wave(BwdWave& wave);
  template <class Wants, class Fill>
  void go_over_keys(BwdWave& wave, const Wants& wants, const Fill& fill);
  void sum_deltas(BwdWave& wave);
  void find_factors(BwdWave& wave);
  void run_splits(BwdWave& wave);
  void run_split(BwdMember& member, int64_t split, int64_t aux_slot, int worker);
  void place_keys(const BwdMember& member, int64_t n, int worker, BwdBlock* block);
  void run_block(BwdMember& member, int64_t split, int64_t n, int64_t aux_slot, int worker);
  void store_wave(BwdWave& wave);
  void store_queries(const BwdMember& member, int64_t g, int64_t m) const;
  void store_keys(const BwdMember& member, int64_t n, const float* dk, const float* dv) const;
  void store_shared_gradients();

  const AttentionKernels& all_kernels_;
  const OperandKernels& kernels_;
  const AttentionCall& call_;
  const AttentionProblem& problem_;
  const AttentionArgs& args_;
  const AttentionPlan& plan_;
  const Context& context_;
  BwdShape shape_;
  int64_t num_workers_;
  int64_t capacity_;
  ProgramScratch program_scratch_;
  Workspace workspace_;
  char* scratch_ = nullptr;
  RowStats stats_;
  KeptList<double> dalibi_;        ///< by sequence and head, where it is wanted
  KeptList<double> dalibi_parts_;  ///< by pair, split and head of its group
  AuxGradients daux_;
};

}  // namespace flashtile::cpu
