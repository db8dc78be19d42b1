// SPDX-License-Identifier: Apache-2.0
#pragma once

// Gates, norm and feature maps of layers, over rows in float32. Formulas are those of the
// references (src/ops/layer_parts); elements of a row are lanes.

#include "cpu/kernels/layer_part_types.hpp"
#include "cpu/kernels/scan.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

/// Blocks of a chunk in float32.
struct PartBlocks {
  Scratch scratch;
  int64_t floats;

  PartBlocks(const LayerPartChunk& c, int64_t rows) : scratch{c.scratch}, floats(rows * c.ld) {}
  float* take() { return scratch.take<float>(floats); }
};

/// Of the five blocks and two rows that a backward of gated_norm takes.
inline int64_t row_part_scratch_bytes(int64_t max_rows, int64_t ld, int64_t) {
  Scratch scratch{nullptr};
  for (int n = 0; n < 5; ++n) scratch.take<float>(max_rows * ld);
  for (int n = 0; n < 2; ++n) scratch.take<float>(ld);
  return scratch.used;
}

/// Rows of a tensor that a chunk takes: its own, or those that one of its rows is made of.
struct PartRows {
  ChunkRows rows;
  bool are_apart;  ///< those of a row do not lie side by side

  PartRows(const LayerPartChunk& c, const ChunkRows& tensor) : rows(tensor), are_apart(false) {
    if (c.rows_in_one == 1) return;
    const int64_t size = tensor.dtype == DType::kF32 ? 4 : 2;
    are_apart = rows.row_stride * c.rows_in_one != c.columns * rows.stride * size;
    if (!are_apart) rows.row_stride *= c.rows_in_one;
  }
  /// Those of row t, where they lie apart.
  ChunkRows of_row(const LayerPartChunk& c, int64_t t) const {
    ChunkRows parts = rows;
    parts.data += t * c.rows_in_one * rows.row_stride;
    return parts;
  }
};

/// Rows of a tensor where they lie, if they are floats side by side, or a block for them.
struct PlacedRows {
  float* data;
  int64_t ld;
  bool is_block;

  PlacedRows(const LayerPartChunk& c, const ChunkRows& tensor, PartBlocks& blocks)
      : is_block(false) {
    const PartRows at(c, tensor);
    data = reinterpret_cast<float*>(at.rows.data);
    ld = at.rows.row_stride / 4;
    // A softmax goes over its rows more than once, and may not find its inputs overwritten.
    const bool is_softmax = c.options->map == FeatureMap::kSoftmax;
    const bool is_there = data != nullptr && tensor.dtype == DType::kF32 && tensor.stride == 1;
    if (is_there && !at.are_apart && !is_softmax && c.columns % kLanes == 0) return;
    data = blocks.take();
    ld = c.ld;
    is_block = true;
  }
  float* row(int64_t t) const { return data + t * ld; }
};

/// Columns of a block up to its ld become 0.
inline PlacedRows read_rows(const LayerPartChunk& c, const ChunkRows& source, PartBlocks& blocks) {
  const PlacedRows to(c, source, blocks);
  if (!to.is_block || source.data == nullptr) return to;
  const PartRows from(c, source);
  if (!from.are_apart) {
    pack_chunk_rows(from.rows, c.rows, c.columns, 1.0f, to.data, to.ld);
    return to;
  }
  const int64_t dim = c.columns / c.rows_in_one;
  fill_row(to.data, c.rows * to.ld, 0);
  for (int64_t t = 0; t < c.rows; ++t) {
    pack_chunk_rows(from.of_row(c, t), c.rows_in_one, dim, 1.0f, to.row(t), dim);
  }
  return to;
}

inline void write_rows(const LayerPartChunk& c, const PlacedRows& from, const ChunkRows& target) {
  if (!from.is_block || target.data == nullptr) return;
  const PartRows to(c, target);
  if (!to.are_apart) return store_chunk_rows(from.data, from.ld, c.rows, c.columns, to.rows);
  const int64_t dim = c.columns / c.rows_in_one;
  for (int64_t t = 0; t < c.rows; ++t) {
    store_chunk_rows(from.row(t), dim, c.rows_in_one, dim, to.of_row(c, t));
  }
}

/// Adds the sums of columns [j, j + kLanes) to a row of the parameters' gradients.
FLASHTILE_INLINE void add_part_sums(const LayerPartChunk& c, int64_t row, int64_t j, Vf sums) {
  add_to_doubles(select(first_lanes(c.columns - j), sums, zero()),
                 c.dparameters + row * c.parameter_ld + j);
}

// ---- log_decay_gate ----

struct LogDecayGate {
  Vf value, slope, slope_of_A_log;

  FLASHTILE_INLINE LogDecayGate(const LayerPartOptions& options, Vf y, Vf rate) {
    const Vf factor = broadcast(options.factor);
    // Of slopes: finite, so that a gradient of 0 through a reset stays 0.
    const Vf lowest = broadcast(-0x1.fffffep127f);
    if (options.has_lower_bound) {
      const Vf s = sigmoid(rate * y);
      value = broadcast(options.lower_bound) * s * factor;
      slope = max(lowest, value * (broadcast(1.0f) - s) * rate);
      slope_of_A_log = slope * y;
    } else if (options.is_rate_large) {
      // Inputs far below 0 have a softplus near exp(y), which rates near its inverse make a number
      // again although neither is one of float32. exp(min(y, 0)) is taken out of both factors.
      const Vf below = min(y, zero());
      const Vf scale = exp(rate + below) * factor;
      const Vf rest = select(below < broadcast(-17.0f), broadcast(1.0f), softplus(y) / exp(below));
      value = -(scale * rest);
      slope = max(lowest, -(scale * sigmoid(abs(y))));
      slope_of_A_log = max(lowest, value);
    } else if (options.has_rate) {
      value = -(rate * softplus(y)) * factor;
      slope = -(rate * sigmoid(y)) * factor;
      slope_of_A_log = value;
    } else {
      value = -softplus(-y) * factor;
      slope = sigmoid(-y) * factor;
      slope_of_A_log = zero();
    }
  }
};

/// Calls visit(row, their gate) for columns [j, j + kLanes) of all rows.
template <class Visit>
FLASHTILE_INLINE void for_each_gate(const LayerPartChunk& c, const PlacedRows& x, int64_t j,
                                    const Visit& visit) {
  const Vf bias = load(c.parameters + j);
  const Vf rate = load(c.parameters + c.parameter_ld + j);
  for (int64_t t = 0; t < c.rows; ++t) {
    visit(t, LogDecayGate(*c.options, load(x.row(t) + j) + bias, rate));
  }
}

inline void log_decay_gate_fwd_chunk(const LayerPartChunk& c) {
  PartBlocks blocks(c, c.max_rows);
  const PlacedRows x = read_rows(c, c.x, blocks);
  const PlacedRows out(c, c.out, blocks);
  for (int64_t j = 0; j < c.columns; j += kLanes) {
    for_each_gate(c, x, j,
                  [&](int64_t t, const LogDecayGate& gate) { store(out.row(t) + j, gate.value); });
  }
  write_rows(c, out, c.out);
}

inline void log_decay_gate_bwd_chunk(const LayerPartChunk& c) {
  PartBlocks blocks(c, c.max_rows);
  const PlacedRows x = read_rows(c, c.x, blocks);
  const PlacedRows dout = read_rows(c, c.dout, blocks);
  const PlacedRows dx(c, c.dx, blocks);
  for (int64_t j = 0; j < c.columns; j += kLanes) {
    Vf dbias = zero();
    Vf dA_log = zero();
    for_each_gate(c, x, j, [&](int64_t t, const LogDecayGate& gate) {
      const Vf gradient = load(dout.row(t) + j);
      const Vf dx_of_row = gradient * gate.slope;
      store(dx.row(t) + j, dx_of_row);
      dbias = dbias + dx_of_row;
      dA_log = fma(gradient, gate.slope_of_A_log, dA_log);
    });
    add_part_sums(c, 0, j, dbias);
    add_part_sums(c, 1, j, dA_log);
  }
  write_rows(c, dx, c.dx);
}

// ---- gated_norm ----

FLASHTILE_INLINE Vf norm_gate(const LayerPartOptions& options, Vf z) {
  return options.is_sigmoid ? sigmoid(z) : silu(z);
}
FLASHTILE_INLINE Vf norm_gate_slope(const LayerPartOptions& options, Vf z) {
  const Vf s = sigmoid(z);
  return options.is_sigmoid ? s * (broadcast(1.0f) - s) : silu_slope(z);
}

/// One row of a head.
struct NormRow {
  const LayerPartChunk& c;
  const float* x;
  const float* z;
  bool has_gate_before, has_gate_behind;

  FLASHTILE_INLINE NormRow(const LayerPartChunk& chunk, const float* x_row, const float* z_row)
      : c(chunk), x(x_row), z(z_row) {
    has_gate_before = c.options->has_gate && c.options->is_gate_first;
    has_gate_behind = c.options->has_gate && !c.options->is_gate_first;
  }

  /// y = x times what comes before the norm, may be in place; returns 1 / sqrt(mean of y^2 + eps).
  FLASHTILE_INLINE Vf normalize(float* y) const {
    Vf squares = zero();
    for (int64_t j = 0; j < c.columns; j += kLanes) {
      Vf product = load(x + j);
      if (has_gate_before) product = product * norm_gate(*c.options, load(z + j));
      store(y + j, product);
      squares = fma(product, product, squares);
    }
    const float mean = reduce_add(squares) / static_cast<float>(c.columns);
    return broadcast(1.0f / __builtin_sqrtf(mean + c.options->eps));
  }
  /// a times what comes behind the norm.
  FLASHTILE_INLINE Vf behind(Vf a, int64_t j) const {
    return has_gate_behind ? a * norm_gate(*c.options, load(z + j)) : a;
  }
  FLASHTILE_INLINE Vf weight(int64_t j) const { return load(c.parameters + j); }
};

inline void gated_norm_fwd_chunk(const LayerPartChunk& c) {
  PartBlocks blocks(c, c.max_rows);
  const PlacedRows x = read_rows(c, c.x, blocks);
  const PlacedRows z = read_rows(c, c.z, blocks);
  const PlacedRows out(c, c.out, blocks);
  float* y = blocks.scratch.take<float>(c.ld);
  for (int64_t t = 0; t < c.rows; ++t) {
    const NormRow row(c, x.row(t), z.row(t));
    const Vf factor = row.normalize(y);
    for (int64_t j = 0; j < c.columns; j += kLanes) {
      store(out.row(t) + j, row.behind(load(y + j) * factor * row.weight(j), j));
    }
  }
  write_rows(c, out, c.out);
}

/// One row back to dx and dz, and dweight is added to. y is room for a row.
inline void gated_norm_row_gradient(const NormRow& row, const float* dout, float* y, float* dx,
                                    float* dz, float* dweight) {
  const LayerPartChunk& c = row.c;
  const Vf factor = row.normalize(y);
  Vf products = zero();
  for (int64_t j = 0; j < c.columns; j += kLanes) {
    const Vf u = load(y + j) * factor;
    const Vf by_weight = row.behind(load(dout + j), j) * u;
    store(dweight + j, load(dweight + j) + by_weight);
    products = fma(by_weight, row.weight(j), products);
  }
  const Vf mean = broadcast(reduce_add(products) / static_cast<float>(c.columns));
  for (int64_t j = 0; j < c.columns; j += kLanes) {
    const Vf u = load(y + j) * factor;
    const Vf dnormed = load(dout + j) * row.weight(j);
    const Vf dy = factor * fnma(u, mean, row.behind(dnormed, j));
    const Vf dgate = row.has_gate_before ? dy * load(row.x + j) : dnormed * u;
    const Vf gate = load(row.z + j);
    store(dx + j, row.has_gate_before ? dy * norm_gate(*c.options, gate) : dy);
    if (c.options->has_gate) store(dz + j, dgate * norm_gate_slope(*c.options, gate));
  }
}

inline void gated_norm_bwd_chunk(const LayerPartChunk& c) {
  PartBlocks blocks(c, c.max_rows);
  const PlacedRows x = read_rows(c, c.x, blocks);
  const PlacedRows z = read_rows(c, c.z, blocks);
  const PlacedRows dout = read_rows(c, c.dout, blocks);
  const PlacedRows dx(c, c.dx, blocks);
  const PlacedRows dz(c, c.dz, blocks);
  float* y = blocks.scratch.take<float>(c.ld);
  float* dweight = blocks.scratch.take<float>(c.ld);
  fill_row(dweight, c.columns, 0);
  for (int64_t t = 0; t < c.rows; ++t) {
    gated_norm_row_gradient(NormRow(c, x.row(t), z.row(t)), dout.row(t), y, dx.row(t), dz.row(t),
                            dweight);
  }
  for (int64_t j = 0; j < c.columns; j += kLanes) add_part_sums(c, 0, j, load(dweight + j));
  write_rows(c, dx, c.dx);
  write_rows(c, dz, c.dz);
}

// ---- feature_map ----

/// y = softmax of x; columns behind the last one become 0.
inline void softmax_row(const float* x, int64_t columns, float* y) {
  const float top = row_max_of(x, columns, -__builtin_inff());
  const float sum = exp_row<Exp>(x, columns, top, y);
  scale_row(y, columns, 1.0f / sum);
}

/// All maps but softmax, and their derivatives.
FLASHTILE_INLINE Vf map_element(FeatureMap map, Vf x) {
  if (map == FeatureMap::kElu) return select(x > zero(), x + broadcast(1.0f), exp(x));
  const Vf positive = max(x, zero());
  return map == FeatureMap::kRelu ? positive : positive * positive;
}
FLASHTILE_INLINE Vf map_slope(FeatureMap map, Vf x) {
  if (map == FeatureMap::kElu) return select(x > zero(), broadcast(1.0f), exp(x));
  const Vf positive = max(x, zero());
  if (map == FeatureMap::kReluSquared) return positive + positive;
  return select(x > zero(), broadcast(1.0f), zero());
}

inline void feature_map_fwd_chunk(const LayerPartChunk& c) {
  PartBlocks blocks(c, c.max_rows);
  const PlacedRows x = read_rows(c, c.x, blocks);
  const PlacedRows out(c, c.out, blocks);
  for (int64_t t = 0; t < c.rows; ++t) {
    if (c.options->map == FeatureMap::kSoftmax) {
      softmax_row(x.row(t), c.columns, out.row(t));
      continue;
    }
    for (int64_t j = 0; j < c.columns; j += kLanes) {
      store(out.row(t) + j, map_element(c.options->map, load(x.row(t) + j)));
    }
  }
  write_rows(c, out, c.out);
}

inline void feature_map_bwd_chunk(const LayerPartChunk& c) {
  PartBlocks blocks(c, c.max_rows);
  const PlacedRows x = read_rows(c, c.x, blocks);
  const PlacedRows dout = read_rows(c, c.dout, blocks);
  const PlacedRows dx(c, c.dx, blocks);
  for (int64_t t = 0; t < c.rows; ++t) {
    const float* gradient = dout.row(t);
    float* to = dx.row(t);
    if (c.options->map == FeatureMap::kSoftmax) {
      softmax_row(x.row(t), c.columns, to);
      softmax_grad_row(to, gradient, c.columns, row_dot(to, gradient, c.columns), to);
      continue;
    }
    for (int64_t j = 0; j < c.columns; j += kLanes) {
      store(to + j, load(gradient + j) * map_slope(c.options->map, load(x.row(t) + j)));
    }
  }
  write_rows(c, dx, c.dx);
}

inline constexpr LayerPartKernels kLogDecayGateKernels = {
    row_part_scratch_bytes, log_decay_gate_fwd_chunk, log_decay_gate_bwd_chunk};
inline constexpr LayerPartKernels kGatedNormKernels = {row_part_scratch_bytes, gated_norm_fwd_chunk,
                                                       gated_norm_bwd_chunk};
inline constexpr LayerPartKernels kFeatureMapKernels = {
    row_part_scratch_bytes, feature_map_fwd_chunk, feature_map_bwd_chunk};

}  // namespace flashtile::cpu::FLASHTILE_ISA
