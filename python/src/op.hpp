// SPDX-License-Identifier: Apache-2.0
//
// An op of the library as Python calls it: which tensors and options stand where in the argument
// lists is found once, from the op's table.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "arrays.hpp"
#include "core/op_spec.hpp"

namespace flashtile::python {

class Op {
 public:
  /// Names of table rows in the order in which calls give their values; families are not among
  /// them. Throws Error for a name that the table does not have.
  Op(const std::string& name, const std::vector<std::string>& tensors,
     const std::vector<std::string>& options);

  /// Runs the op on arrays (None: not given) and option values (None: the default).
  ///
  /// \param families  "aux.NAME", "param.NAME": value; or None
  /// \param results   names of outputs to return; those that are no argument are allocated in the
  ///                  library of the first tensor
  /// \param dtypes    {output: dtype name} for outputs to allocate; or None: the table's first
  nb::tuple run(nb::tuple tensors, nb::tuple options, nb::object families, nb::tuple results,
                nb::object dtypes, nb::object implementation, int max_workers) const;
  /// What run would do: a dict of problem, chosen, plan, workspace_bytes, candidates, text.
  nb::dict explain(nb::tuple tensors, nb::tuple options, nb::object families, nb::tuple results,
                   nb::object dtypes, nb::object implementation, int max_workers) const;

  /// mask_blocks of the call.
  std::vector<std::vector<int>> mask_blocks(nb::tuple tensors, nb::tuple options,
                                            nb::object families, int64_t batch_idx, int64_t head,
                                            int64_t block_m, int64_t block_n) const;

 private:
  struct Call;
  void prepare(Call& call, nb::tuple tensors, nb::tuple options, nb::object families,
               nb::tuple results, nb::object dtypes, nb::object implementation,
               int max_workers) const;
  void set_tensor(Call& call, const TensorSpec& row, const std::string& name,
                  nb::handle array) const;
  void set_option(Call& call, const OptionSpec& row, const std::string& name,
                  nb::handle value) const;
  void set_families(Call& call, nb::handle families) const;
  void add_result(Call& call, const std::string& name, nb::handle dtypes) const;

  const OpSpec* spec_;
  std::vector<const TensorSpec*> tensors_;
  std::vector<const OptionSpec*> options_;
};

/// The shape of an output of a call whose inputs are set. Throws Error where they leave it open.
std::vector<int64_t> output_shape(const OpCall& call, const TensorSpec& row,
                                  std::string_view suffix);

nb::dict explanation_dict(const Explanation& explanation);

}  // namespace flashtile::python
