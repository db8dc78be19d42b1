// SPDX-License-Identifier: Apache-2.0
#include "judge.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tensors.hpp"
#include "terminal.hpp"

namespace flashtile::cli {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Expectation* find(std::vector<Expectation>& expected, std::string_view name) {
  for (Expectation& e : expected) {
    if (e.name == name) return &e;
  }
  return nullptr;
}

size_t last_dim(const Expectation& e) {
  return e.shape.empty() ? 1 : static_cast<size_t>(e.shape.back());
}

/// Rows of a (batch, seqlen, heads, dim) or (total, heads, dim) tensor whose lse, stored (batch,
/// heads, seqlen) or (heads, total), is -inf.
void mark_empty_rows(const Expectation& lse, Expectation& rows) {
  const size_t ndim = rows.shape.size();
  if (ndim != lse.shape.size() + 1 || (ndim != 3 && ndim != 4)) return;
  const auto size = [&](size_t d) { return static_cast<size_t>(rows.shape[d]); };
  const size_t batch_size = ndim == 4 ? size(0) : 1;
  const size_t length = size(ndim - 3), heads = size(ndim - 2), dim = size(ndim - 1);
  rows.is_zero.resize(rows.values.size(), 0);
  for (size_t b = 0; b < batch_size; ++b) {
    for (size_t i = 0; i < length; ++i) {
      for (size_t h = 0; h < heads; ++h) {
        if (lse.values[(b * heads + h) * length + i] != -kInfinity) continue;
        const size_t begin = ((b * length + i) * heads + h) * dim;
        std::fill_n(rows.is_zero.begin() + static_cast<std::ptrdiff_t>(begin), dim, uint8_t{1});
      }
    }
  }
}

bool is_zero_row(const Expectation& e, size_t row) {
  const size_t dim = last_dim(e);
  const auto begin = e.values.begin() + static_cast<std::ptrdiff_t>(row * dim);
  return std::all_of(begin, begin + static_cast<std::ptrdiff_t>(dim),
                     [](double x) { return x == 0; });
}

std::string index_text(const Expectation& e, size_t flat) {
  std::string text;
  for (size_t d = e.shape.size(); d-- > 0;) {
    const auto size = static_cast<size_t>(e.shape[d]);
    text = std::to_string(flat % size) + (text.empty() ? "" : ", ") + text;
    flat /= size;
  }
  return "(" + text + ")";
}

Verdict judge_one(const Expectation& e, const std::vector<double>& got, NanRule nan_rule) {
  Verdict verdict{e.name, 0, e.tolerance(), ""};
  if (got.size() != e.values.size()) {
    verdict.fault =
        std::to_string(got.size()) + " elements instead of " + std::to_string(e.values.size());
    return verdict;
  }
  const auto blame = [&](size_t i, const std::string& expected) {
    if (!verdict.fault.empty()) return;
    verdict.fault = number_text(got[i], 6) + " at " + index_text(e, i) + ", expected " + expected;
  };
  size_t worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double want = e.values[i];
    if (std::isnan(want)) {
      if (nan_rule == NanRule::kRefused) blame(i, "no NaN in what is expected");
      if (nan_rule == NanRule::kExpected && !std::isnan(got[i])) blame(i, "nan");
    } else if (std::isinf(want)) {
      if (got[i] != want) blame(i, number_text(want));
    } else if (!std::isfinite(got[i])) {
      blame(i, number_text(want, 6));
    } else {
      const double error = std::abs(got[i] - want);
      if (error > verdict.error) {
        verdict.error = error;
        worst = i;
      }
      if (!e.is_zero.empty() && e.is_zero[i] != 0 && got[i] != 0) blame(i, "exactly 0");
    }
  }
  if (verdict.error > verdict.tolerance && verdict.fault.empty()) {
    verdict.fault = "error " + number_text(verdict.error) + " at " + index_text(e, worst) +
                    ", allowed " + number_text(verdict.tolerance);
  }
  return verdict;
}

}  // namespace

void mark_exact_zeros(std::vector<Expectation>& expected) {
  if (const Expectation* lse = find(expected, "lse")) {
    for (const char* name : {"out", "dq"}) {
      Expectation* rows = find(expected, name);
      if (rows != nullptr) mark_empty_rows(*lse, *rows);
    }
  }
  Expectation* dk = find(expected, "dk");
  Expectation* dv = find(expected, "dv");
  if (dk == nullptr || dv == nullptr || dk->values.empty() || dv->values.empty()) return;
  dk->is_zero.resize(dk->values.size(), 0);
  dv->is_zero.resize(dv->values.size(), 0);
  const size_t num_rows = dk->values.size() / last_dim(*dk);
  for (size_t row = 0; row < num_rows; ++row) {
    if (!is_zero_row(*dk, row) || !is_zero_row(*dv, row)) continue;
    for (Expectation* e : {dk, dv}) {
      const size_t dim = last_dim(*e);
      std::fill_n(e->is_zero.begin() + static_cast<std::ptrdiff_t>(row * dim), dim, uint8_t{1});
    }
  }
}

std::vector<Verdict> judge(const OpCall& call, std::span<const Expectation> expected,
                           NanRule nan_rule) {
  std::vector<Verdict> verdicts;
  for (const Expectation& e : expected) {
    verdicts.push_back(judge_one(e, to_numbers(call.tensor(e.name)), nan_rule));
  }
  return verdicts;
}

std::string fault_text(std::span<const Verdict> verdicts) {
  std::string text;
  for (const Verdict& verdict : verdicts) {
    if (verdict.fault.empty()) continue;
    text += (text.empty() ? "" : "; ") + verdict.name + ": " + verdict.fault;
  }
  return text;
}

double worst_ratio(std::span<const Verdict> verdicts) {
  double worst = 0;
  for (const Verdict& verdict : verdicts) {
    if (verdict.error > 0) worst = std::max(worst, verdict.error / verdict.tolerance);
  }
  return worst;
}

}  // namespace flashtile::cli
