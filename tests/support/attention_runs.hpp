// SPDX-License-Identifier: Apache-2.0
//
// Attention by hand: inputs as a struct, a forced implementation, all results in memory of their
// own, and what they should be.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "expectations.hpp"
#include "flashtile/attention.hpp"
#include "support/tensor.hpp"

namespace flashtile::test {

/// Instruction sets of this build and machine, best first, and "reference": what forces an
/// implementation of either op.
std::vector<std::string> all_implementations();
/// Without the reference.
std::vector<std::string> all_kernels();

/// What attention is asked for; owners of the options' tensors live elsewhere. With `dout` the
/// backward runs too and gives all gradients that the inputs have.
struct Inputs {
  Tensor q, k, v;
  Tensor dout;
  AttentionOptions options;
};

struct Results {
  Tensor out, lse;
  Tensor dq, dk, dv, dbias, dalibi_slopes, dsink;
  std::map<std::string, Tensor> daux;

  /// By the names of the operator table; absent ones are left out.
  std::map<std::string, Tensor> by_name() const;
};

/// One worker: what many small calls run on. Other tests show that the number changes no bit.
Context one_worker();

/// Runs the forward, and with dout the backward, by one implementation. Results are filled with NaN
/// before.
Results run(const Inputs& inputs, const std::string& implementation,
            const Context& context = one_worker());

/// The names of results whose bits differ; empty when none do.
std::string differing(const Results& a, const Results& b);

/// What every implementation should give for some inputs: the reference's results in double, each
/// with a tolerance of twice the error of a plain implementation in the inputs' precision.
class Truth {
 public:
  explicit Truth(const Inputs& inputs);

  /// What is wrong with the results that there are; empty when nothing is.
  std::string fault_of(const Results& results) const;
  const std::vector<double>& values(std::string_view name) const;

 private:
  const cli::Expectation* find(std::string_view name) const;

  std::string disagreement_;
  std::vector<cli::Expectation> forward_, backward_;
};

/// The keys that each query sees, as an implementation's weights show: "1101" for keys 0, 1 and 3.
/// Queries are 0, so that weights are equal, and values are the identity.
std::vector<std::string> visible_keys(int64_t seqlen_q, int64_t seqlen_k,
                                      const AttentionOptions& options,
                                      const std::string& implementation);

/// Runs every implementation and adds a test failure for each that is wrong.
void expect_all_conform(const Inputs& inputs);

}  // namespace flashtile::test
