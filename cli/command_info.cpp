// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <memory>

#include "commands.hpp"
#include "core/executor.hpp"
#include "cpu/cpu_info.hpp"
#include "cpu/peak.hpp"
#include "flashtile/version.hpp"
#include "gpu_info.hpp"
#include "terminal.hpp"

namespace flashtile::cli {
namespace {

void print_machine(bool with_peak) {
  const cpu::CpuInfo& info = cpu::cpu_info();
  std::string isas;
  for (const cpu::Isa isa : info.isas()) {
    isas = std::string(cpu::isa_name(isa)) + (isas.empty() ? "" : " ") + isas;
  }
  const Context context;
  Table table({"flashtile", FLASHTILE_VERSION_STRING});
  table.add({"cpu", info.model_name});
  table.add({"instruction sets", isas});
  if (info.has(cpu::Isa::kAvx512Bf16)) {
    table.add({"bf16 dot product", std::string(info.has_fast_bf16_dot ? "faster" : "slower") +
                                       " than float32 on this processor"});
  }
  table.add({"cpus usable", std::to_string(info.num_cpus)});
  table.add({"threads used", std::to_string(num_workers_of(context))});
  table.add({"caches", "L1d " + bytes_text(static_cast<double>(info.l1d_bytes)) + ", L2 " +
                           bytes_text(static_cast<double>(info.l2_bytes)) + ", L3 " +
                           bytes_text(static_cast<double>(info.l3_bytes))});
  table.add({"devices", device_names()});
  if (with_peak) {
    const cpu::Peak peak = cpu::measure_peak(context);
    table.add({"peak f32", number_text(peak.f32_gflops) + " GFLOP/s"});
    if (peak.bf16_dot_gflops > 0) {
      table.add({"peak bf16 dot", number_text(peak.bf16_dot_gflops) + " GFLOP/s"});
    }
  }
  add_gpu_rows(table);
  table.print(std::cout);
}

void print_ops(DeviceType device) {
  for (const OpSpec* spec : all_ops()) {
    std::cout << spec->name << ":";
    for (const std::string& name : spec->implementations(device)) std::cout << ' ' << name;
    std::cout << '\n';
  }
}

void print_ops() {
  std::cout << "\nimplementations, best first\n";
  print_ops(DeviceType::kCpu);
  if (num_gpus() == 0) return;
  std::cout << "\non a GPU\n";
  print_ops(DeviceType::kCuda);
}

std::string_view type_name(OptionType type) {
  switch (type) {
    case OptionType::kBool:
      return "bool";
    case OptionType::kInt:
      return "int";
    case OptionType::kUint:
      return "uint";
    case OptionType::kFloat:
      return "float";
    default:
      return "text";
  }
}

/// The table of an op, as a person reads it.
void print_op(const OpSpec& spec) {
  std::cout << spec.name << ": " << spec.doc << "\n\n";
  Table tensors({"tensor", "", "dtype", "meaning", "shape"});
  for (const TensorSpec& row : spec.tensors) {
    const char* direction = row.direction == Direction::kOut     ? "out"
                            : row.direction == Direction::kInOut ? "in-out"
                                                                 : "in";
    tensors.add({std::string(row.name), direction + std::string(row.required ? "" : ", optional"),
                 std::string(row.dtypes), std::string(row.doc),
                 std::string(row.shape.empty() ? "any" : row.shape)});
  }
  tensors.print(std::cout);
  std::cout << '\n';
  Table options({"option", "type", "default", "meaning"});
  for (const OptionSpec& row : spec.options) {
    options.add({std::string(row.name), std::string(type_name(row.type)),
                 std::string(row.default_text), std::string(row.doc)});
  }
  options.print(std::cout);
  std::cout << '\n';
  Table sizes({"size", "in a problem text", "default"});
  for (const DimSpec& dim : spec.dims) {
    sizes.add(
        {std::string(dim.name),
         std::string(dim.code.empty() ? dim.name : dim.code) + (dim.code.empty() ? "=N" : "N"),
         std::string(dim.default_from.empty() ? "" : dim.default_from)});
  }
  sizes.print(std::cout);
}

}  // namespace

void add_info_command(CLI::App& app, int* exit_code) {
  const auto op = std::make_shared<std::string>();
  const auto with_peak = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand(
      "info", "Shows the machine and the implementations that it can run, or the table of one op");
  command->add_option("op", *op, "Show this op's tensors, options and sizes");
  command->add_flag("--peak", *with_peak, "Measure the arithmetic peak as well");
  command->callback([op, with_peak, exit_code] {
    *exit_code = 0;
    if (op->empty()) {
      print_machine(*with_peak);
      print_ops();
      return;
    }
    const OpSpec* spec = find_op(*op);
    if (spec == nullptr) throw CLI::ValidationError("info", "there is no op '" + *op + "'");
    print_op(*spec);
  });
}

}  // namespace flashtile::cli
