// SPDX-License-Identifier: Apache-2.0
#include "cpu/attention_daux.hpp"

#include <algorithm>

#include "core/element.hpp"
#include "ops/attention/finish.hpp"

namespace flashtile::cpu {
namespace {

constexpr int64_t kMaxSlots = 16;
constexpr int64_t kMaxSumElements = int64_t{1} << 23;  ///< of all slots together: 64 MiB

}  // namespace

AuxGradients::AuxGradients(const ScorePrograms& programs, const AttentionArgs& args,
                           int64_t num_tasks) {
  int64_t num_elements = 0;
  for (const AuxTensor& aux : args.aux) {
    if (!aux.gradient) continue;
    targets_.push_back({aux.gradient, {}});
    num_elements += aux.gradient.numel();
  }
  has_sites_ = !programs.sites.empty() || !programs.guarded_sites.empty();
  if (!has_sites_) return;
  const int64_t affordable = kMaxSumElements / std::max<int64_t>(num_elements, 1);
  num_slots_ = std::clamp<int64_t>(std::min(affordable, num_tasks), 1, kMaxSlots);
  for (Target& target : targets_) {
    target.sums.assign(static_cast<size_t>(num_slots_ * target.tensor.numel()), 0.0);
  }
  sites_ = bind(programs.sites);
  guarded_sites_ = bind(programs.guarded_sites);
}

std::vector<AuxSum> AuxGradients::bind(const std::vector<GradientSite>& sites) {
  std::vector<AuxSum> bound;
  for (int64_t slot = 0; slot < num_slots_; ++slot) {
    for (const GradientSite& site : sites) {
      const auto target = std::find_if(
          targets_.begin(), targets_.end(),
          [&](const Target& candidate) { return candidate.tensor.data == site.target.data; });
      const int64_t size = target->tensor.numel();
      bound.push_back({target->sums.data() + slot * size, size, site.is_uniform});
    }
  }
  return bound;
}

void AuxGradients::fill(int64_t slot, ScoreGradients* gradients) const {
  gradients->num_aux = static_cast<int64_t>(sites_.size()) / num_slots_;
  gradients->num_guarded_aux = static_cast<int64_t>(guarded_sites_.size()) / num_slots_;
  gradients->aux = sites_.data() + slot * gradients->num_aux;
  gradients->guarded_aux = guarded_sites_.data() + slot * gradients->num_guarded_aux;
}

void AuxGradients::store() const {
  for (const Target& target : targets_) {
    const auto size = static_cast<size_t>(target.tensor.numel());
    for_each_element(target.tensor, [&](int64_t flat, char* address) {
      double sum = 0;
      for (size_t at = static_cast<size_t>(flat); at < target.sums.size(); at += size) {
        sum += target.sums[at];
      }
      store_float(address, target.tensor.dtype, sum);
    });
  }
}

}  // namespace flashtile::cpu
