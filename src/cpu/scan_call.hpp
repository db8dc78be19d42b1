// SPDX-License-Identifier: Apache-2.0
//
// The launchers of scans on the CPU: blocks of channels of a sequence.
#pragma once

#include "core/workspace.hpp"
#include "cpu/attention_call.hpp"
#include "cpu/linear_call.hpp"

namespace flashtile::cpu {

/// Rows that are worked on together.
inline constexpr int64_t kScanRows = 32;

const ScanKernels& scan_kernels(const IsaEntry& isa, const LinearOp& op);

/// Channels that are worked on together, of one group.
struct ScanBlock {
  int64_t first;
  int64_t count;
};

/// The blocks of a group's channels.
KeptList<ScanBlock> scan_blocks(const LinearProblem& problem, int64_t group);
/// Groups share B and C; without those all channels are one.
int64_t num_scan_groups(const LinearProblem& problem);

/// Rows of kScanChannels numbers: of a channel's state, and of its parameters.
int64_t scan_state_rows(const LinearProblem& problem);
int64_t scan_parameter_rows(const LinearProblem& problem);

/// A block of channels of one sequence: what its chunks have in common.
class ScanStream {
 public:
  ScanStream(const LinearProblem& problem, const LinearPlan& plan, const LinearArgs& args,
             const LinearSequence& sequence, const ScanBlock& block, float* parameters);

  /// A state or its gradient between the caller's tensor and rows of kScanChannels. An absent one
  /// is zero, but eps of rwkv4's state -inf.
  void load_state(const TensorView& tensor, bool is_gradient, float* state) const;
  void store_state(const TensorView& tensor, const float* state) const;

  /// Inputs of chunk n; the caller adds the rest.
  ScanChunk make_chunk(int64_t n) const;
  /// The block's columns of a tensor from row `begin` of the sequence on.
  ChunkRows rows(const TensorView& tensor, int64_t begin) const;
  int64_t num_chunks() const { return ceil_div(sequence_.length, max_rows_); }

 private:
  void load_parameters(float* parameters) const;
  ChunkRows group_rows(const TensorView& tensor, int64_t begin) const;

  const LinearProblem& problem_;
  const LinearArgs& args_;
  const LinearSequence& sequence_;
  ScanBlock block_;
  int64_t max_rows_;
  float* parameters_;
};

LinearPlan plan_scan_fwd(const IsaEntry& isa, const LinearProblem& problem);
void launch_scan_fwd(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                     const LinearArgs& args, const Context& context);

LinearPlan plan_scan_bwd(const IsaEntry& isa, const LinearProblem& problem);
void launch_scan_bwd(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                     const LinearArgs& args, const Context& context);

/// sLSTM, whose channels mix: of a forward or a backward.
LinearPlan plan_slstm(const IsaEntry& isa, const LinearProblem& problem);
void launch_slstm(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                  const LinearArgs& args, const Context& context);

/// Multiply-adds of the forward, about.
double scan_work(const LinearProblem& problem);

}  // namespace flashtile::cpu
