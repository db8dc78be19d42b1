// SPDX-License-Identifier: Apache-2.0
//
// A user's score and mask expressions as strip programs for the CPU kernels.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cpu/kernels/attention_types.hpp"
#include "ops/attention/mask.hpp"
#include "ops/attention/problem.hpp"
#include "variant/expr/access.hpp"
#include "variant/expr/program.hpp"
#include "variant/expr/score_line.hpp"

namespace flashtile::cpu {

/// A compiled program with the tensors and scalars of a call.
class CallProgram {
 public:
  CallProgram(std::span<const variant::Expr> roots, const AttentionArgs& args);
  CallProgram(const CallProgram&) = delete;
  CallProgram& operator=(const CallProgram&) = delete;

  /// Becomes that of another call, whose tensors lie as those of the first one do.
  void bind_tensors(const AttentionArgs& args);

  const variant::StripProgram& view() const { return view_; }
  /// The program for one head of a sequence; an index error is written to `*error` (or
  /// nowhere, where that is null).
  BoundProgram bind(const AttentionProblem& problem, const Sequence& sequence, int64_t head,
                    int32_t* error) const;
  const std::string& aux_name(int32_t aux_idx) const {
    return program_.aux[static_cast<size_t>(aux_idx)].name;
  }

 private:
  variant::Program program_;
  variant::StripProgram view_;
  std::vector<variant::StripAux> aux_;
  std::vector<float> params_;
};

/// A tensor element that the score reads and whose gradient is wanted.
struct GradientSite {
  size_t aux = 0;           ///< by AttentionArgs::aux
  bool is_uniform = false;  ///< one element for all keys of a row
};

/// The line of a problem's user score, where the kernels take it as one.
std::optional<variant::ScoreLine> line_of(const AttentionProblem& problem);

/// The programs of a call. A tile that is seen in part uses the guarded form of a score, which
/// reads nothing for a pair that the masks hide: an index need only be right where it is used.
/// Gradient programs have the outputs score, derivative, and for each site: whether it is read,
/// its derivative, its element in row-major order. A score that only adds the same along lines of
/// pairs has one program for that, and no other: what a masked pair has is added to, whatever it
/// is, and masked then.
struct ScorePrograms {
  ScorePrograms(const AttentionProblem& problem, const AttentionArgs& args,
                const variant::Expr& rest_of_mask);

  /// Become those of another call of the problem.
  void bind_tensors(const AttentionArgs& args);

  /// Calls visit(program) for each program that there is.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const auto* program :
         {&mask, &score, &guarded_score, &gradient, &guarded_gradient, &line}) {
      if (*program) visit(**program);
    }
  }

  std::optional<CallProgram> mask;
  std::optional<CallProgram> score, guarded_score;
  std::optional<CallProgram> gradient, guarded_gradient;
  std::optional<CallProgram> line;  ///< in a backward with the outputs of a gradient program
  int64_t line_shift = 0;
  std::vector<GradientSite> sites, guarded_sites;  ///< of the two gradient programs, or of line
  /// An index, or whether it is used, depends on the score: only the programs can check it.
  bool has_indices_by_score = false;
  /// Of a backward: some element that the score reads is that of several keys of a row.
  bool has_shared_sites = false;
};

}  // namespace flashtile::cpu
