// SPDX-License-Identifier: Apache-2.0
//
// flashtile._core: the operator table and one class to call ops with. What users see is Python,
// made from the table.
#include <nanobind/nanobind.h>

#include "core/executor.hpp"
#include "core/op_spec.hpp"
#include "cpu/cpu_info.hpp"
#include "cuda/runtime/device.hpp"
#include "cuda/runtime/driver.hpp"
#include "flashtile/error.hpp"
#include "flashtile/explain.hpp"
#include "flashtile/gpu.hpp"
#include "flashtile/version.hpp"
#include "op.hpp"
#include "xla_call.hpp"

namespace flashtile::python {
namespace {

void translate_error(const std::exception_ptr& pointer, void* /*payload*/) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    PyObject* type = PyExc_RuntimeError;
    if (error.code() == ErrorCode::kInvalidArgument) type = PyExc_ValueError;
    if (error.code() == ErrorCode::kUnsupported) type = PyExc_NotImplementedError;
    PyErr_SetString(type, error.what());
  }
}

nb::str text(std::string_view view) { return nb::str(view.data(), view.size()); }

const char* direction_name(Direction direction) {
  if (direction == Direction::kOut) return "out";
  return direction == Direction::kInOut ? "in-out" : "in";
}

const char* type_name(OptionType type) {
  constexpr const char* names[] = {"bool", "int", "int", "float", "str"};
  return names[static_cast<int>(type)];
}

nb::dict op_table(const OpSpec& spec) {
  nb::list tensors;
  for (const TensorSpec& row : spec.tensors) {
    nb::dict tensor;
    tensor["name"] = text(row.name);
    tensor["direction"] = direction_name(row.direction);
    tensor["required"] = row.required;
    tensor["shape"] = text(row.shape);
    tensor["dtypes"] = text(row.dtypes);
    tensor["gradient_of"] = text(row.gradient_of);
    tensor["doc"] = text(row.doc);
    tensors.append(tensor);
  }
  nb::list options;
  for (const OptionSpec& row : spec.options) {
    nb::dict option;
    option["name"] = text(row.name);
    option["type"] = type_name(row.type);
    option["default"] = text(row.default_text);
    option["doc"] = text(row.doc);
    options.append(option);
  }
  nb::list names;
  for (const std::string& name : spec.implementations()) names.append(name.c_str());
  nb::dict result;
  result["name"] = text(spec.name);
  result["doc"] = text(spec.doc);
  result["tensors"] = tensors;
  result["options"] = options;
  result["implementations"] = names;
  return result;
}

nb::list all_tables() {
  nb::list tables;
  for (const OpSpec* spec : all_ops()) tables.append(op_table(*spec));
  return tables;
}

nb::dict machine() {
  const cpu::CpuInfo& info = cpu::cpu_info();
  nb::list isas;
  for (int i = 0; i < cpu::kNumIsas; ++i) {
    if (info.has_isa[i]) isas.append(text(cpu::isa_name(static_cast<cpu::Isa>(i))));
  }
  nb::list devices;
  const cuda::Driver* driver = cuda::Driver::get();
  for (int i = 0; driver != nullptr && i < driver->num_devices(); ++i) {
    devices.append(nb::make_tuple(cuda::device_info(i).model.name.c_str(),
                                  cuda::device_info(i).model.arch.c_str()));
  }
  nb::dict result;
  result["version"] = FLASHTILE_VERSION_STRING;
  result["cpu"] = info.model_name.c_str();
  result["instruction_sets"] = isas;
  result["threads"] = num_workers_of(Context());
  result["cuda_devices"] = devices;
  result["cuda_fault"] = driver == nullptr ? cuda::Driver::fault().c_str() : "";
  return result;
}

/// Handlers by the names that JAX has for platforms, as the capsules that it registers.
nb::dict xla_handlers() {
  nb::dict handlers;
  handlers["cpu"] = nb::capsule(reinterpret_cast<const void*>(&run_on_cpu));
  handlers["CUDA"] = nb::capsule(reinterpret_cast<const void*>(&run_on_cuda));
  return handlers;
}

nb::dict explain_text(const std::string& problem, const std::string& arch) {
  Context context;
  context.arch = arch;
  return explanation_dict(flashtile::explain(problem, context));
}

}  // namespace
}  // namespace flashtile::python

NB_MODULE(_core, module) {
  namespace nb = nanobind;
  using namespace nanobind::literals;
  using flashtile::python::Op;
  nb::register_exception_translator(flashtile::python::translate_error);
  nb::set_leak_warnings(false);  // ops live as long as the interpreter
  module.attr("__version__") = FLASHTILE_VERSION_STRING;
  nb::class_<Op>(module, "Op")
      .def(nb::init<const std::string&, const std::vector<std::string>&,
                    const std::vector<std::string>&>(),
           "name"_a, "tensors"_a, "options"_a)
      .def("run", &Op::run, "tensors"_a, "options"_a, "families"_a.none(), "results"_a,
           "dtypes"_a.none(), "implementation"_a.none(), "max_workers"_a)
      .def("explain", &Op::explain, "tensors"_a, "options"_a, "families"_a.none(), "results"_a,
           "dtypes"_a.none(), "implementation"_a.none(), "max_workers"_a)
      .def("mask_blocks", &Op::mask_blocks, "tensors"_a, "options"_a, "families"_a.none(),
           "batch"_a, "head"_a, "block_m"_a, "block_n"_a);
  module.def("tables", flashtile::python::all_tables);
  module.def("xla_handlers", flashtile::python::xla_handlers);
  module.def("machine", flashtile::python::machine);
  module.def("explain", flashtile::python::explain_text, "problem"_a, "arch"_a);
  module.def("supports", &flashtile::supports, "problem"_a);
  module.def(
      "warmup", [](const std::string& problem) { flashtile::warmup(problem); }, "problem"_a,
      nb::call_guard<nb::gil_scoped_release>());
  module.def("add_kernel_pack", &flashtile::add_kernel_pack, "path"_a);
}
