// SPDX-License-Identifier: Apache-2.0
#include "cpu/attention_daux.hpp"

#include <algorithm>

#include "core/count.hpp"
#include "core/element.hpp"
#include "ops/attention/finish.hpp"

namespace flashtile::cpu {
namespace {

constexpr int64_t kMaxSlots = 16;
constexpr int64_t kMaxSumElements = int64_t{1} << 23;  ///< of all slots together: 64 MiB

int64_t num_slots_for(const AttentionProblem& problem, int64_t num_tasks) {
  const int64_t affordable = kMaxSumElements / std::max<int64_t>(problem.aux_gradient_elements, 1);
  return std::clamp<int64_t>(std::min(affordable, num_tasks), 1, kMaxSlots);
}

}  // namespace

int64_t AuxGradients::bytes(const AttentionProblem& problem, int64_t num_tasks) {
  return (Count(num_slots_for(problem, num_tasks)) * problem.aux_gradient_elements * sizeof(double))
      .value("attention_bwd", "bytes of gradients of aux tensors");
}

AuxGradients::AuxGradients(const AttentionProblem& problem, const AttentionPlan& plan,
                           const ScorePrograms& programs, const AttentionArgs& args,
                           char* workspace) {
  has_sites_ = !programs.sites.empty() || !programs.guarded_sites.empty();
  if (has_sites_) num_slots_ = num_slots_for(problem, plan.num_tasks);
  auto* sums = reinterpret_cast<double*>(workspace);
  for (size_t n = 0; n < args.aux.size(); ++n) {
    const TensorView& gradient = args.aux[n].gradient;
    if (!gradient) continue;
    targets_.push_back({n, gradient, has_sites_ ? sums : nullptr});
    if (has_sites_) sums = std::fill_n(sums, num_slots_ * gradient.numel(), 0.0);
  }
  bind(programs.sites, &sites_);
  bind(programs.guarded_sites, &guarded_sites_);
}

void AuxGradients::bind(const std::vector<GradientSite>& sites, KeptList<AuxSum>* bound) const {
  for (int64_t slot = 0; slot < num_slots_; ++slot) {
    for (const GradientSite& site : sites) {
      const auto target =
          std::find_if(targets_.begin(), targets_.end(),
                       [&](const Target& candidate) { return candidate.aux == site.aux; });
      const int64_t size = target->tensor.numel();
      bound->push_back({target->sums + slot * size, size, site.is_uniform});
    }
  }
}

void AuxGradients::fill(int64_t slot, ScoreGradients* gradients) const {
  gradients->num_aux = static_cast<int64_t>(sites_.size()) / num_slots_;
  gradients->num_guarded_aux = static_cast<int64_t>(guarded_sites_.size()) / num_slots_;
  gradients->aux = sites_.data() + slot * gradients->num_aux;
  gradients->guarded_aux = guarded_sites_.data() + slot * gradients->num_guarded_aux;
}

void AuxGradients::store() const {
  for (const Target& target : targets_) {
    const int64_t size = target.tensor.numel();
    for_each_element(target.tensor, [&](int64_t flat, char* address) {
      double sum = 0;
      for (int64_t slot = 0; slot < num_slots_ && target.sums != nullptr; ++slot) {
        sum += target.sums[slot * size + flat];
      }
      store_float(address, target.tensor.dtype, sum);
    });
  }
}

}  // namespace flashtile::cpu
