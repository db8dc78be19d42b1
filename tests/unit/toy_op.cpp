// SPDX-License-Identifier: Apache-2.0
#include "toy_op.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <mutex>

#include "core/fail.hpp"
#include "core/problem_text.hpp"
#include "core/registry.hpp"
#include "core/validate.hpp"

namespace flashtile::toy {
namespace {

using Args = ScaleRowsArgs;

// ---- What the op means -------------------------------------------------------------------------

struct Problem {
  Sizes sizes;
  DType dtype = DType::kNone;
  int64_t repeat = 1;
  bool has_gradient = false;
};
struct Plan {
  bool uses_float = false;
};
std::string to_string(const Plan& plan) { return plan.uses_float ? "loops in float" : "loops"; }

using Implementation = flashtile::Implementation<Problem, Plan, Args>;

double load(const TensorView& view, std::initializer_list<int64_t> index) {
  const char* address = view.at(index);
  if (view.dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, address, sizeof(value));
    return static_cast<double>(value);
  }
  if (view.dtype == DType::kF64) {
    double value = 0;
    std::memcpy(&value, address, sizeof(value));
    return value;
  }
  int32_t value = 0;
  std::memcpy(&value, address, sizeof(value));
  return value;
}

void store(const TensorView& view, std::initializer_list<int64_t> index, double value) {
  if (view.dtype == DType::kF32) {
    const auto narrow = static_cast<float>(value);
    std::memcpy(view.at(index), &narrow, sizeof(narrow));
  } else {
    std::memcpy(view.at(index), &value, sizeof(value));
  }
}

double table_sum(const Args& args) {
  double sum = 0;
  for (const NamedTensor& table : args.tables) {
    for (int64_t i = 0; i < table.tensor.shape[0]; ++i) sum += load(table.tensor, {i});
  }
  for (const NamedNumber& extra : args.extras) sum += extra.value;
  return sum;
}

double factor_at(const Args& args, int64_t b, int64_t r) {
  return args.factor.ndim == 1 ? load(args.factor, {r}) : load(args.factor, {b, r});
}

template <class Real>
double row_value(const Args& args, int64_t b, int64_t r, int64_t c, double table) {
  auto value = static_cast<Real>(load(args.x, {b, r, c}));
  if (args.form == "square") value *= value;
  double bias = args.shift + table + static_cast<double>(args.seed % 2);
  if (args.bias) bias += load(args.bias, {args.bias.shape[0] == 1 ? 0 : b, c});
  for (int64_t i = 0; i < args.repeat; ++i) {
    value = value * static_cast<Real>(factor_at(args, b, r)) + static_cast<Real>(bias);
  }
  if (args.limit) {
    const auto limit = static_cast<Real>(*args.limit);
    value = std::min(std::max(value, -limit), limit);
  }
  return static_cast<double>(args.negate ? -value : value);
}

template <class Real>
void launch(const Problem& problem, const Plan&, const Args& args, const Context&) {
  const int64_t num_rows = problem.sizes.at("num_rows");
  const int64_t num_cols = problem.sizes.at("num_cols");
  const double table = table_sum(args);
  const double sign = args.negate ? -1 : 1;
  std::vector<double> dfactor(static_cast<size_t>(args.factor.numel()), 0.0);
  double dtable = 0;
  for (int64_t b = 0; b < problem.sizes.at("batch_size"); ++b) {
    const double num_used =
        args.num_used ? load(args.num_used, {b}) : static_cast<double>(num_rows);
    for (int64_t r = 0; r < num_rows; ++r) {
      const bool is_used = static_cast<double>(r) < num_used;
      for (int64_t c = 0; c < num_cols; ++c) {
        store(args.y, {b, r, c}, is_used ? row_value<Real>(args, b, r, c, table) : 0);
        if (!args.dy) continue;
        const double dy = is_used ? sign * load(args.dy, {b, r, c}) : 0;
        const int64_t place = args.factor.ndim == 1 ? r : b * num_rows + r;
        dfactor[static_cast<size_t>(place)] += dy * load(args.x, {b, r, c});
        dtable += dy;
        if (args.dx) store(args.dx, {b, r, c}, dy * factor_at(args, b, r));
      }
    }
  }
  for (int64_t i = 0; args.dfactor && i < args.dfactor.numel(); ++i) {
    const double value = dfactor[static_cast<size_t>(i)];
    if (args.factor.ndim == 1) {
      store(args.dfactor, {i}, value);
    } else {
      store(args.dfactor, {i / num_rows, i % num_rows}, value);
    }
  }
  for (const NamedTensor& named : args.tables) {
    for (int64_t i = 0; named.gradient && i < named.tensor.shape[0]; ++i) {
      store(named.gradient, {i}, dtable);
    }
  }
}

const std::array<Implementation, 2> kImplementations = {
    Implementation{"scale_rows_float",
                   [](const Problem& problem) {
                     return problem.dtype == DType::kF32 ? std::string() : "dtype is not f32";
                   },
                   [](const Problem&) { return Plan{true}; }, launch<float>},
    Implementation{"scale_rows_reference", [](const Problem&) { return std::string(); },
                   [](const Problem&) { return Plan{false}; }, launch<double>},
};

Problem make_problem(const Args& args, bool has_memory) {
  const OpSpec& spec = scale_rows_spec();
  Problem problem;
  problem.sizes = has_memory ? validate_call(spec, &args) : validate_shapes(spec, &args);
  problem.dtype = args.x.dtype;
  problem.repeat = args.repeat;
  problem.has_gradient = args.dx || args.dfactor;
  for (const NamedTensor& table : args.tables) {
    problem.has_gradient = problem.has_gradient || table.gradient;
    if (table.tensor.ndim != 1) fail(spec.name, "table.", table.name, " is no list");
  }
  if (args.form != "" && args.form != "square") {
    fail(spec.name, "form is '", args.form, "', expected 'square'");
  }
  if (problem.has_gradient && (!args.dy || args.repeat != 1 || args.limit || args.form != "")) {
    fail(spec.name, "gradients need dy, and repeat, limit and form at their defaults");
  }
  return problem;
}

void run(const void* args_pointer, const Context& context) {
  const Args& args = *static_cast<const Args*>(args_pointer);
  const Problem problem = make_problem(args, /*has_memory=*/true);
  const std::span<const Implementation> all = kImplementations;
  const Implementation& chosen = select("scale_rows", all, problem, context);
  chosen.launch(problem, chosen.plan(problem), args, context);
}

Explanation explain(const void* args_pointer, const Context& context) {
  const Args& args = *static_cast<const Args*>(args_pointer);
  const std::span<const Implementation> all = kImplementations;
  return explain_selection("scale_rows", all, make_problem(args, args.x.data != nullptr), context);
}

// ---- The table ---------------------------------------------------------------------------------

constexpr std::array kDims = {DimSpec{"batch_size", "b"}, DimSpec{"num_rows", "r"},
                              DimSpec{"num_cols", "c", "num_rows"}};

template <auto Member>
constexpr TensorSpec row(std::string_view name, Direction direction, bool is_required,
                         std::string_view shape, std::string_view dtypes, std::string_view doc,
                         std::string_view gradient_of = {}, Fill fill = Fill::kNormal) {
  return {name,   direction, is_required,
          shape,  dtypes,    gradient_of,
          doc,    fill,      tensor_access<Args, Member>,
          nullptr};
}

template <bool is_gradient>
TensorView* access_table(void* args, std::string_view suffix, bool create) {
  auto& tables = static_cast<Args*>(args)->tables;
  for (NamedTensor& table : tables) {
    if (table.name == suffix) return is_gradient ? &table.gradient : &table.tensor;
  }
  if (!create) return nullptr;
  tables.push_back({std::string(suffix), {}, {}});
  return is_gradient ? &tables.back().gradient : &tables.back().tensor;
}

std::vector<std::string> table_suffixes(const void* args) {
  std::vector<std::string> names;
  for (const NamedTensor& table : static_cast<const Args*>(args)->tables)
    names.push_back(table.name);
  return names;
}

constexpr std::string_view kShapeX = "batch_size num_rows num_cols";
constexpr std::array kTensors = {
    row<&Args::x>("x", Direction::kIn, true, kShapeX, "f32 f64", "values"),
    row<&Args::factor>("factor", Direction::kIn, true, "num_rows; batch_size num_rows", "f32",
                       "factor of each row"),
    row<&Args::bias>("bias", Direction::kIn, false, "batch_size? num_cols", "f32 f64",
                     "added to each column"),
    row<&Args::num_used>("num_used", Direction::kIn, false, "batch_size", "i32",
                         "rows that are not 0", "", Fill::kLengths),
    row<&Args::dy>("dy", Direction::kIn, false, kShapeX, "=x", "incoming gradient of y"),
    TensorSpec{"table.*", Direction::kIn, false, "", "f32 i32", "", "their sums are added",
               Fill::kNormal, access_table<false>, table_suffixes},
    row<&Args::y>("y", Direction::kOut, true, kShapeX, "=x f32", "the result"),
    row<&Args::dx>("dx", Direction::kOut, false, kShapeX, "=x", "gradient of x", "x"),
    row<&Args::dfactor>("dfactor", Direction::kOut, false, "", "f32", "gradient of factor",
                        "factor"),
    TensorSpec{"dtable.*", Direction::kOut, false, "", "f32", "table.*", "gradients of tables",
               Fill::kNormal, access_table<true>, table_suffixes},
};

template <auto Member>
constexpr OptionSpec option(std::string_view name, std::string_view default_text, double min_value,
                            double max_value, std::string_view doc, bool min_is_open = false) {
  using Field = std::remove_cvref_t<decltype(std::declval<Args&>().*Member)>;
  return {name,
          option_type<Field>(),
          default_text,
          min_value,
          max_value,
          doc,
          option_get<Args, Member>,
          option_set<Args, Member>,
          nullptr,
          min_is_open};
}

OptionValue get_extra(const void* args, std::string_view suffix) {
  for (const NamedNumber& extra : static_cast<const Args*>(args)->extras) {
    if (extra.name == suffix) return extra.value;
  }
  return std::monostate{};
}

void set_extra(void* args, std::string_view suffix, const OptionValue& value) {
  auto& extras = static_cast<Args*>(args)->extras;
  std::erase_if(extras, [&](const NamedNumber& extra) { return extra.name == suffix; });
  const double* number = std::get_if<double>(&value);
  if (number != nullptr) extras.push_back({std::string(suffix), *number});
}

std::vector<std::string> extra_suffixes(const void* args) {
  std::vector<std::string> names;
  for (const NamedNumber& extra : static_cast<const Args*>(args)->extras) {
    names.push_back(extra.name);
  }
  return names;
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::array kOptions = {
    option<&Args::shift>("shift", "0", 0, 0, "added to all"),
    option<&Args::limit>("limit", "none", 0, kInfinity, "clamps", /*min_is_open=*/true),
    option<&Args::repeat>("repeat", "1", 1, 8, "how often"),
    option<&Args::seed>("seed", "0", 0, 0, "1 is added for odd ones"),
    option<&Args::negate>("negate", "false", 0, 0, "changes the sign"),
    option<&Args::form>("form", "", 0, 0, "'square': x is squared first"),
    OptionSpec{"extra.*", OptionType::kFloat, "", 0, 0, "added to all", get_extra, set_extra,
               extra_suffixes},
};

OpSpec make_spec() {
  OpSpec spec;
  spec.name = "scale_rows";
  spec.doc = "scales the rows of a matrix";
  spec.dims = kDims;
  spec.tensors = kTensors;
  spec.options = kOptions;
  spec.make_args = [] { return std::shared_ptr<void>(std::make_shared<Args>()); };
  spec.copy_args = [](const void* args) {
    return std::shared_ptr<void>(std::make_shared<Args>(*static_cast<const Args*>(args)));
  };
  spec.run = run;
  spec.explain = explain;
  spec.list_implementations = [](DeviceType) {
    std::vector<std::string> names;
    for (const Implementation& implementation : kImplementations) {
      names.emplace_back(implementation.name);
    }
    return names;
  };
  // The rows in use are what a problem text's values may fix: at least so many rows there are.
  spec.derive_sizes = [](const ProblemText& problem, Sizes& sizes) {
    const TensorItem* item = problem.find_tensor("num_used");
    if (item == nullptr || !item->has_values || item->values.empty()) return;
    sizes.emplace("num_rows", *std::max_element(item->values.begin(), item->values.end()));
  };
  return spec;
}

}  // namespace

const OpSpec& scale_rows_spec() {
  static const OpSpec spec = make_spec();
  return spec;
}

void register_scale_rows() {
  static std::once_flag once;
  std::call_once(once, [] { register_op(scale_rows_spec()); });
}

}  // namespace flashtile::toy
