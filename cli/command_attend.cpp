// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>

#include "attend_call.hpp"
#include "commands.hpp"
#include "core/executor.hpp"
#include "cuda/runtime/event.hpp"
#include "device_tensors.hpp"
#include "expectations.hpp"
#include "flashtile/error.hpp"
#include "terminal.hpp"

namespace flashtile::cli {
namespace {

constexpr std::string_view kPlain = "plain";

struct AttendOptions {
  AttendRequest request;
  std::string op_name;
  std::string all_file;
  std::string implementation;
  std::string device = "cpu";
  std::vector<std::string> dtypes;
  int threads = 0;
  int repeat = 1;
  bool is_backward = false;
  bool has_check = false;
};

/// "--softmax-scale,--softmax_scale" for a row's name.
std::string flag_names(std::string_view row_name) {
  std::string name(row_name);
  if (name.ends_with(".*")) name.resize(name.size() - 2);
  std::string dashed = name;
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  return dashed == name ? "--" + name : "--" + dashed + ",--" + name;
}

/// "NAME=REST" of a family's flag, with the full name of the tensor or option.
std::pair<std::string, std::string> family_entry(std::string_view row_name,
                                                 const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw CLI::ValidationError("attend", flag_names(row_name) + " takes NAME=VALUE, not " + text);
  }
  return {family_name(row_name, text.substr(0, equals)), text.substr(equals + 1)};
}

/// A flag that puts its value into `target` under the row's name.
void add_row(CLI::App& command, std::string_view row_name, const std::string& doc,
             const char* group, std::map<std::string, std::string>& target) {
  const std::string name(row_name);
  CLI::Option* flag = command.add_option_function<std::vector<std::string>>(
      flag_names(row_name),
      [name, &target](const std::vector<std::string>& values) {
        for (const std::string& value : values) {
          if (name.ends_with(".*")) {
            target.insert(family_entry(name, value));
          } else {
            target[name] = value;
          }
        }
      },
      doc);
  flag->group(group);
  // One value for each time that the flag is given; files may follow it.
  flag->expected(1)->multi_option_policy(name.ends_with(".*") ? CLI::MultiOptionPolicy::TakeAll
                                                              : CLI::MultiOptionPolicy::Throw);
}

bool has_flag(const CLI::App& command, std::string_view row_name) {
  const std::string names = flag_names(row_name);
  return command.get_option_no_throw(names.substr(0, names.find(','))) != nullptr;
}

/// Flags for the rows of a table that have none yet.
void add_table(CLI::App& command, const OpSpec& spec, AttendRequest& request) {
  for (const TensorSpec& row : spec.tensors) {
    if (has_flag(command, row.name)) continue;
    const std::string doc(row.doc);
    if (row.direction == Direction::kOut) {
      add_row(command, row.name, "Write to this file: " + doc, "Results", request.result_files);
    } else {
      add_row(command, row.name, "FILE or FILE:NAME: " + doc, "Inputs", request.tensor_files);
    }
  }
  for (const OptionSpec& row : spec.options) {
    if (has_flag(command, row.name)) continue;
    const std::string doc(row.doc);
    if (row.type == OptionType::kBool) {
      const std::string name(row.name);
      command
          .add_flag_function(
              flag_names(row.name),
              [name, &request](int64_t count) {
                request.options[name] = count > 0 ? "true" : "false";
              },
              doc)
          ->group("Problem");
    } else {
      const std::string fallback =
          row.default_text.empty() ? "" : "; default " + std::string(row.default_text);
      add_row(command, row.name, doc + fallback, "Problem", request.options);
    }
  }
}

double median(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  return numbers[numbers.size() / 2];
}

/// Of this program alone: what getrusage tells includes what the parent had before exec.
double peak_memory_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    double kib = 0;
    if (word == "VmHWM:" && status >> kib) return kib * 1024;
  }
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;
}

/// What ran, how long it took at its median, and its memory on a device.
struct Timing {
  std::string implementation;
  double milliseconds = 0;
  int64_t device_bytes = 0;
};

/// Runs on a GPU, timed there, between the copies of the tensors to it and of results back.
Timing run_on_device(const OpCall& call, const AttendOptions& options, const Context& context,
                     Progress& progress) {
  const DeviceCall device(call, context);
  Timing timing{device.call().explain(device.context()).chosen, 0, device.memory_bytes()};
  load_kernels(device.call().kernels(device.context()), device.context());
  cuda::Event start(context), end(context);
  std::vector<double> times;
  for (size_t i = 0, num_runs = static_cast<size_t>(options.repeat); i < num_runs; ++i) {
    progress.show(i, num_runs, problem_text(call));
    start.record();
    device.run();
    end.record();
    end.wait();
    times.push_back(end.milliseconds_since(start));
  }
  device.download();
  timing.milliseconds = median(std::move(times));
  return timing;
}

Timing run_timed(const OpCall& call, const AttendOptions& options, const Context& context,
                 Progress& progress) {
  if (context.device.type == DeviceType::kCuda) {
    return run_on_device(call, options, context, progress);
  }
  Timing timing;
  const bool is_plain = options.implementation == kPlain;
  const PlainOp* plain = is_plain ? find_plain(call.spec().name) : nullptr;
  if (is_plain && plain == nullptr) {
    throw Error(ErrorCode::kUnsupported,
                std::string(call.spec().name) + ": there is no plain implementation");
  }
  timing.implementation = is_plain ? std::string(kPlain) : call.explain(context).chosen;
  std::vector<double> times;
  const auto num_runs = static_cast<size_t>(options.repeat);
  for (size_t i = 0; i < num_runs; ++i) {
    progress.show(i, num_runs, problem_text(call));
    const auto start = std::chrono::steady_clock::now();
    if (is_plain) {
      plain->run(call, {}, context);
    } else {
      call.run(context);
    }
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
    times.push_back(time.count());
  }
  timing.milliseconds = median(std::move(times));
  return timing;
}

/// Rows of the table of results: what the file itself says about them, and the reference.
void add_verdicts(Table& table, const std::vector<Verdict>& verdicts, const std::string& method) {
  for (const Verdict& verdict : verdicts) {
    table.add({verdict.name, number_text(verdict.error), number_text(verdict.tolerance),
               verdict.fault.empty() ? "ok" : "FAILED: " + verdict.fault, method});
  }
}

/// Results that the input files hold themselves, such as a model's own output. They come from
/// another program, so they may be as wrong as ours: the same tolerance once more.
void compare_with_file(const OpCall& call, const AttendInputs& inputs,
                       const std::vector<Verdict>& own, Table& table, bool* has_failed) {
  std::vector<Expectation> expected;
  for (const std::string& name : call.tensor_names()) {
    const auto found = inputs.tensors.find(name);
    if (found == inputs.tensors.end()) continue;
    if (call.spec().find_tensor(name)->direction != Direction::kOut) continue;
    Expectation e;
    e.name = name;
    e.shape = shape_of(found->second);
    e.values = to_numbers(found->second);
    for (const Verdict& verdict : own) {
      if (verdict.name == name) e.floor = 2 * verdict.tolerance;
    }
    expected.push_back(std::move(e));
  }
  const std::vector<Verdict> verdicts = judge(call, expected, NanRule::kExpected);
  add_verdicts(table, verdicts, "the input file's own");
  *has_failed = *has_failed || !fault_text(verdicts).empty();
}

int check_calls(const std::vector<const OpCall*>& calls, const std::vector<Timing>& timings,
                const AttendInputs& inputs, const Context& context) {
  Table table({"result", "error", "allowed", "", "compared with"});
  bool has_failed = false;
  for (size_t i = 0; i < calls.size(); ++i) {
    const CallCheck check = timings[i].implementation == kPlain
                                ? check_plain(*calls[i], context)
                                : check_call(*calls[i], timings[i].implementation, context);
    add_verdicts(table, check.verdicts, "double precision, " + check.method);
    if (!check.fault.empty()) {
      has_failed = true;
      if (check.verdicts.empty() || fault_text(check.verdicts).empty()) {
        std::cout << "FAILED: " << check.fault << '\n';
      }
    }
    compare_with_file(*calls[i], inputs, check.verdicts, table, &has_failed);
  }
  table.print(std::cout);
  return has_failed ? 1 : 0;
}

/// No result overwrites an input or another result.
void check_overwriting(const AttendOptions& options) {
  namespace fs = std::filesystem;
  const AttendRequest& request = options.request;
  std::vector<fs::path> inputs(request.input_files.begin(), request.input_files.end());
  for (const auto& [name, source] : request.tensor_files) inputs.push_back(path_of(source));
  std::vector<fs::path> results;
  for (const auto& [name, path] : request.result_files) results.push_back(path);
  if (!options.all_file.empty()) results.push_back(options.all_file);
  const auto same = [](const fs::path& a, const fs::path& b) {
    std::error_code ignored;  // a file that is not there is no other one
    return fs::weakly_canonical(a, ignored) == fs::weakly_canonical(b, ignored) ||
           fs::equivalent(a, b, ignored);
  };
  for (size_t i = 0; i < results.size(); ++i) {
    for (const fs::path& input : inputs) {
      if (!same(results[i], input)) continue;
      throw CLI::ValidationError("attend", results[i].string() +
                                               " is an input: a result cannot "
                                               "be written to it");
    }
    for (size_t j = 0; j < i; ++j) {
      if (!same(results[i], results[j])) continue;
      throw CLI::ValidationError("attend", "two results go to " + results[i].string() +
                                               "; -o FILE.safetensors takes all of them");
    }
  }
}

void check_result_paths(const AttendOptions& options) {
  for (const auto& [name, path] : options.request.result_files) {
    if (path.ends_with(".npy") || path.ends_with(".safetensors")) continue;
    throw CLI::ValidationError(
        "attend", "result " + name + " goes to a .npy or .safetensors file, not to " + path);
  }
  if (!options.all_file.empty() && !options.all_file.ends_with(".safetensors")) {
    throw CLI::ValidationError("attend",
                               "--output is a .safetensors file, not " + options.all_file);
  }
}

/// Every result that a file or a dtype is named for is one that the calls give, and every input
/// that a flag is given for is one that they take.
void check_names(const std::vector<const OpCall*>& calls, const AttendRequest& request) {
  const auto any_call = [&](const std::string& name, auto&& takes) {
    return std::any_of(calls.begin(), calls.end(), [&](const OpCall* call) {
      const TensorSpec* row = call->spec().find_tensor(name);
      return row != nullptr && call->tensor(name) && takes(*row);
    });
  };
  const auto is_result = [](const TensorSpec& row) { return row.direction == Direction::kOut; };
  const auto fail = [](const std::string& text) { throw CLI::ValidationError("attend", text); };
  for (const auto& [name, path] : request.result_files) {
    if (any_call(name, is_result)) continue;
    fail("there is no result " + name + " to write to " + path +
         "; gradients need --backward and their input");
  }
  for (const auto& [name, dtype] : request.result_dtypes) {
    if (any_call(name, is_result)) continue;
    fail("there is no result " + name + " to give the dtype " + std::string(dtype_name(dtype)) +
         "; gradients need --backward and their input");
  }
  for (const auto& [name, source] : request.tensor_files) {
    if (any_call(name, [](const TensorSpec& row) { return row.is_input(); })) continue;
    fail("there is no use for " + name + " from " + source + " without --backward");
  }
}

void print_runs(const std::vector<const OpCall*>& calls, const std::vector<Timing>& timings,
                const Context& context) {
  const bool is_on_device = context.device.type == DeviceType::kCuda;
  const double host_bytes = peak_memory_bytes();
  int64_t device_bytes = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    std::cout << problem_text(*calls[i]) << '\n' << "  " << timings[i].implementation << ", ";
    if (is_on_device) {
      std::cout << "cuda:" << context.device.index;
    } else {
      std::cout << num_workers_of(context) << " threads";
    }
    std::cout << ", " << time_text(timings[i].milliseconds) << '\n';
    device_bytes = std::max(device_bytes, timings[i].device_bytes);
  }
  std::cout << "  peak memory "
            << bytes_text(is_on_device ? static_cast<double>(device_bytes) : host_bytes)
            << (is_on_device ? " of the device\n" : "\n");
}

int attend(AttendOptions& options, const OpSpec& op) {
  AttendRequest& request = options.request;
  check_result_paths(options);
  check_overwriting(options);
  for (const std::string& text : options.dtypes) {
    const size_t equals = text.find('=');
    const DType dtype =
        equals == std::string::npos ? DType::kNone : dtype_from_name(text.substr(equals + 1));
    if (dtype == DType::kNone) {
      throw CLI::ValidationError("attend", "--dtype takes RESULT=DTYPE, as in out=f32");
    }
    request.result_dtypes[text.substr(0, equals)] = dtype;
  }
  const bool has_files = !request.input_files.empty() || !request.tensor_files.empty();
  if (has_files == !request.problem.empty()) {
    throw CLI::ValidationError("attend", "give input files, or --problem for random inputs");
  }
  Context context;
  context.max_workers = options.threads;
  context.device = parse_device(options.device);
  const bool is_on_device = context.device.type == DeviceType::kCuda;
  if (is_on_device && options.implementation == kPlain) {
    throw CLI::ValidationError("attend", "the plain implementation runs on the CPU alone");
  }
  if (options.implementation != kPlain) context.implementation = options.implementation;
  if (!has_files) {
    const ProblemText problem = parse_problem(request.problem);
    context.implementation =
        asked_implementation(problem, context.implementation, context.device.type);
  }
  const AttendInputs inputs = has_files ? read_inputs(request, op, options.is_backward)
                                        : random_inputs(request, op, options.is_backward);

  // Everything that can be wrong with the request shows before the work begins.
  const OwnedCall forward = make_attend_call(op, inputs, request);
  std::vector<const OpCall*> calls{&forward.call};
  std::optional<OwnedCall> backward;
  if (options.is_backward) {
    backward.emplace(make_backward_call(forward, inputs, request));
    calls.push_back(&backward->call);
  }
  check_names(calls, request);
  Progress progress;
  std::vector<Timing> timings{run_timed(forward.call, options, context, progress)};
  if (backward) {
    if (context.implementation.starts_with(op.name)) {
      context.implementation = implementation_suffix(op, context.implementation);
    }
    timings.push_back(run_timed(backward->call, options, context, progress));
  }
  progress.clear();
  print_runs(calls, timings, context);
  for (const std::string& name : inputs.unused) {
    const TensorSpec* row = calls.back()->spec().find_tensor(name);
    const bool is_compared = options.has_check && (row != nullptr || op.find_tensor(name));
    if (!is_compared) std::cerr << "flashtile: note: tensor '" << name << "' is not used\n";
  }
  write_results(calls, request, options.all_file);
  return options.has_check ? check_calls(calls, timings, inputs, context) : 0;
}

}  // namespace

void add_attend_command(CLI::App& app, const OpSpec& op, int* exit_code) {
  const auto options = std::make_shared<AttendOptions>();
  CLI::App* command =
      app.add_subcommand("attend", "Runs an op on tensors from .npy and .safetensors files");
  command->add_option("file", options->request.input_files,
                      ".safetensors files whose tensors have the names of the op's table");
  command->add_option("--op", options->op_name, "The op; its table is what the other flags are")
      ->default_str(std::string(op.name));
  command->add_option("-o,--output", options->all_file, "Write all results to this .safetensors");
  command->add_option("--impl", options->implementation,
                      "Force an implementation: a full name, its part behind the op, or plain");
  command->add_option("--dtype", options->dtypes, "RESULT=DTYPE, as in out=f32")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--device", options->device, "cpu, cuda or cuda:NUMBER");
  command->add_option("--threads", options->threads, "Threads to use; 0: all")->check(at_least(0));
  command->add_option("--repeat", options->repeat, "Run so many times, report the median")
      ->check(at_least(1));
  command->add_flag("--backward", options->is_backward, "Then run the backward op; needs dout");
  command->add_flag("--check", options->has_check,
                    "Compare with double precision, and with results that the files hold");
  command->add_option("--problem", options->request.problem,
                      "Random inputs of this problem text instead of files");
  command->add_option("--seed", options->request.seed, "Seed of random inputs");
  add_table(*command, op, options->request);
  if (backward_of(op) != nullptr) add_table(*command, *backward_of(op), options->request);
  command->callback([options, &op, exit_code, command] {
    if (command->count("--seed") > 0 && options->request.problem.empty()) {
      throw CLI::ValidationError("attend", "--seed is for the random inputs of --problem");
    }
    *exit_code = attend(*options, op);
  });
}

}  // namespace flashtile::cli
