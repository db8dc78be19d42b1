// SPDX-License-Identifier: Apache-2.0
#include "ops/attention_merge/merge.hpp"

#include <array>

#include "core/call_key.hpp"
#include "core/element.hpp"
#include "core/fail.hpp"
#include "core/kept_calls.hpp"
#include "core/memory_errors.hpp"
#include "core/validate.hpp"

namespace flashtile {
namespace {

constexpr std::string_view kOp = "attention_merge";
constexpr int64_t kMaxHeadDim = 1024;

std::span<const MergeImplementation> all_implementations() {
  static const std::vector<MergeImplementation> all = [] {
    std::vector<MergeImplementation> list = cpu_merge_implementations();
    for (MergeImplementation& one : cuda_merge_implementations()) list.push_back(one);
    list.push_back(merge_reference());
    return list;
  }();
  return all;
}

MergeProblem make_problem(const MergeArgs& args, bool has_data) {
  const OpSpec& spec = attention_merge_spec();
  if (has_data) {
    validate_call(spec, &args);
  } else {
    validate_shapes(spec, &args);
  }
  const TensorView& parts = args.out_parts;
  const bool is_packed = parts.ndim == 4;
  for (const auto& [name, tensor, ndim] : {std::tuple{"lse_parts", &args.lse_parts, parts.ndim - 1},
                                           std::tuple{"out", &args.out, parts.ndim - 1},
                                           std::tuple{"lse", &args.lse, parts.ndim - 2}}) {
    if (!*tensor || tensor->ndim == ndim) continue;
    fail(kOp, name, " has ", tensor->ndim, " dimensions, expected ", ndim, " with out_parts of ",
         parts.ndim);
  }
  MergeProblem problem;
  problem.device = parts.device;
  problem.dtype = parts.dtype;
  problem.lse_dtype = args.lse_parts.dtype;
  problem.out_dtype = args.out.dtype;
  if (args.lse) problem.out_lse_dtype = args.lse.dtype;
  problem.num_parts = parts.shape[0];
  problem.batch_size = is_packed ? 1 : parts.shape[1];
  problem.seqlen_q = parts.shape[is_packed ? 1 : 2];
  problem.num_heads = parts.shape[is_packed ? 2 : 3];
  problem.head_dim_v = parts.shape[is_packed ? 3 : 4];
  if (problem.head_dim_v < 1 || problem.head_dim_v > kMaxHeadDim) {
    fail(kOp, "head_dim_v is ", problem.head_dim_v, ", expected 1 to ", kMaxHeadDim);
  }
  return problem;
}

/// +inf is what some programs call empty, with which everything else would be weighed by 0.
void check_lse(const MergeProblem& problem, const MergeArgs& args) {
  for (int64_t i = 0; i < problem.num_rows(); ++i) {
    const MergeRow row = merge_row(problem, args, i);
    for (int64_t p = 0; p < problem.num_parts; ++p) {
      if (load_float(row.lse_part + p * row.lse_step, problem.lse_dtype) !=
          std::numeric_limits<double>::infinity()) {
        continue;
      }
      const int64_t h = i % problem.num_heads;
      const int64_t q = i / problem.num_heads;
      fail(kOp, "lse_parts of part ", p, ", sequence ", q / problem.seqlen_q, ", head ", h,
           ", query ", q % problem.seqlen_q, " is inf, expected -inf for a part without keys");
    }
  }
}

const Error& out_of_memory_of_merge() {
  static const Error error = out_of_memory(kOp);
  return error;
}

using PlannedMerge = PlannedCall<MergeProblem, MergePlan, MergeArgs>;
using MergeCalls = KeptCalls<TableKey<MergeArgs>, PlannedMerge>;

MergeCalls& calls_of_this_thread() {
  thread_local MergeCalls calls;
  return calls;
}

void run_checked(const MergeArgs& args, const Context& context) {
  if (!context.arch.empty()) {
    fail(kOp, "arch is '", context.arch, "', but only explain takes one");
  }
  MergeCalls& calls = calls_of_this_thread();
  calls.next_key().assign(attention_merge_spec(), args, context);
  const auto is_still = [&](const PlannedMerge& call) {
    check_context(kOp, call.problem.device, context);
    return true;
  };
  const auto prepare = [&] {
    PlannedMerge call;
    call.problem = make_problem(args, /*has_data=*/true);
    check_context(kOp, call.problem.device, context);
    call.implementation = &select(kOp, all_implementations(), call.problem, context);
    call.plan = call.implementation->plan(call.problem);
    return call;
  };
  calls.with_call(is_still, prepare, [&](const PlannedMerge& call) {
    if (call.problem.device.type == DeviceType::kCpu) check_lse(call.problem, args);
    call.launch(args, context);
  });
}

void run(const MergeArgs& args, const Context& context) {
  with_memory_errors(out_of_memory_of_merge(), [&] { run_checked(args, context); });
}

using A = MergeArgs;

template <auto Member>
constexpr TensorSpec row(std::string_view name, Direction direction, bool is_required,
                         std::string_view shape, std::string_view dtypes, std::string_view doc) {
  return {name,   direction,     is_required,
          shape,  dtypes,        {},
          doc,    Fill::kNormal, tensor_access<A, Member>,
          nullptr};
}

constexpr std::array kDims = {
    DimSpec{"num_parts", "parts", ""}, DimSpec{"batch_size", "b", ""},
    DimSpec{"seqlen_q", "sq", ""},     DimSpec{"num_heads", "hq", ""},
    DimSpec{"head_dim_v", "dv", ""},   DimSpec{"total_q", "tq", ""},
};

constexpr std::array kTensors = {
    row<&A::out_parts>("out_parts", Direction::kIn, true,
                       "num_parts batch_size seqlen_q num_heads head_dim_v; "
                       "num_parts total_q num_heads head_dim_v",
                       "f32 f16 bf16 f64", "results of attention over parts of the keys"),
    row<&A::lse_parts>("lse_parts", Direction::kIn, true,
                       "num_parts batch_size num_heads seqlen_q; num_parts num_heads total_q",
                       "f32 f64", "their lse; -inf: a part without keys"),
    row<&A::out>("out", Direction::kOut, true,
                 "batch_size seqlen_q num_heads head_dim_v; total_q num_heads head_dim_v",
                 "=out_parts f32 f16 bf16", "the result over all keys"),
    row<&A::lse>("lse", Direction::kOut, false, "batch_size num_heads seqlen_q; num_heads total_q",
                 "f32 f64", "its lse"),
};

OpSpec make_spec() {
  OpSpec spec;
  spec.name = kOp;
  spec.doc = "joins attention over parts of the keys";
  spec.dims = kDims;
  spec.tensors = kTensors;
  spec.make_args = []() -> std::shared_ptr<void> { return std::make_shared<MergeArgs>(); };
  spec.copy_args = [](const void* args) -> std::shared_ptr<void> {
    return std::make_shared<MergeArgs>(*static_cast<const MergeArgs*>(args));
  };
  spec.run = [](const void* args, const Context& context) {
    flashtile::run(*static_cast<const MergeArgs*>(args), context);
  };
  spec.explain = [](const void* args, const Context& context) {
    return with_memory_errors(out_of_memory_of_merge(), [&] {
      const auto& merge = *static_cast<const MergeArgs*>(args);
      const bool has_data = merge.out_parts.data != nullptr;
      MergeProblem problem = make_problem(merge, has_data);
      if (!has_data) problem.device = context.device;
      check_context(kOp, problem.device, context);
      return explain_selection(kOp, all_implementations(), problem, context);
    });
  };
  spec.list_implementations = [](DeviceType device) {
    std::vector<std::string> names;
    for (const MergeImplementation& one : all_implementations()) {
      if (one.device == device) names.emplace_back(one.name);
    }
    return names;
  };
  return spec;
}

int64_t stride_bytes(const TensorView& tensor, int dim) {
  return tensor.strides[static_cast<size_t>(dim)] * dtype_bytes(tensor.dtype);
}

/// Address of (b, i, h, 0) of a tensor whose last dimensions are (batch,) seqlen, heads, dim.
char* row_of(const TensorView& tensor, bool is_packed, int64_t b, int64_t i, int64_t h) {
  const int last = tensor.ndim - 1;
  char* data = static_cast<char*>(tensor.data) + i * stride_bytes(tensor, last - 2) +
               h * stride_bytes(tensor, last - 1);
  return is_packed ? data : data + b * stride_bytes(tensor, last - 3);
}

/// The same with (batch,) heads, seqlen.
char* number_of(const TensorView& tensor, bool is_packed, int64_t b, int64_t i, int64_t h) {
  const int last = tensor.ndim - 1;
  char* data = static_cast<char*>(tensor.data) + h * stride_bytes(tensor, last - 1) +
               i * stride_bytes(tensor, last);
  return is_packed ? data : data + b * stride_bytes(tensor, last - 2);
}

}  // namespace

std::string to_string(const MergePlan& plan) {
  std::string text(plan.implementation);
  if (plan.rows_a_task > 0) text += ": " + std::to_string(plan.rows_a_task) + " rows a task";
  return text;
}

const OpSpec& attention_merge_spec() {
  static const OpSpec spec = make_spec();
  return spec;
}

MergeRow merge_row(const MergeProblem& problem, const MergeArgs& args, int64_t index) {
  const bool is_packed = args.out_parts.ndim == 4;
  const int64_t h = index % problem.num_heads;
  const int64_t i = index / problem.num_heads % problem.seqlen_q;
  const int64_t b = index / problem.num_heads / problem.seqlen_q;
  MergeRow row;
  row.part = row_of(args.out_parts, is_packed, b, i, h);
  row.part_step = stride_bytes(args.out_parts, 0);
  row.part_stride = stride_bytes(args.out_parts, args.out_parts.ndim - 1);
  row.lse_part = number_of(args.lse_parts, is_packed, b, i, h);
  row.lse_step = stride_bytes(args.lse_parts, 0);
  row.out = row_of(args.out, is_packed, b, i, h);
  row.out_stride = stride_bytes(args.out, args.out.ndim - 1);
  if (args.lse) row.lse = number_of(args.lse, is_packed, b, i, h);
  return row;
}

void MergeWeights::compute(const MergeRow& row, int64_t num_parts, DType lse_dtype) {
  constexpr double kEmpty = -std::numeric_limits<double>::infinity();
  weights.resize(static_cast<size_t>(num_parts));
  is_read.resize(static_cast<size_t>(num_parts));
  double highest = kEmpty;
  for (size_t p = 0; p < weights.size(); ++p) {
    weights[p] = load_float(row.lse_part + static_cast<int64_t>(p) * row.lse_step, lse_dtype);
    is_read[p] = weights[p] != kEmpty;
    // Written so that a NaN stays.
    if (!(weights[p] <= highest)) highest = weights[p];
  }
  double sum = 0;
  for (size_t p = 0; p < weights.size(); ++p) {
    weights[p] = is_read[p] != 0 ? std::exp(weights[p] - highest) : 0;
    sum += weights[p];
  }
  for (double& weight : weights) weight = sum == 0 ? 0 : weight / sum;
  lse = sum == 0 ? kEmpty : highest + std::log(sum);
}

void attention_merge(const TensorView& out_parts, const TensorView& lse_parts,
                     const TensorView& out, const TensorView& lse, const Context& context) {
  run({out_parts, lse_parts, out, lse}, context);
}

}  // namespace flashtile
