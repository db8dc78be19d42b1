// SPDX-License-Identifier: Apache-2.0
//
// The blocks that a mask lets kernels visit, against every pair of query and key: a visited set
// that is exact where that is promised, full blocks that are full, and counts that show what is
// skipped.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "ops/attention/mask.hpp"
#include "support/problem_cases.hpp"
#include "support/tensor.hpp"
#include "tensors.hpp"

namespace flashtile::test {
namespace {

using variant::BlockRun;

/// Indices of one pair. Positions: `p` is where the query stands among the keys.
struct Pair {
  int64_t b, h, i, j, p;
};

struct Case {
  const char* name;
  std::string text;  ///< behind "attention_fwd"
  std::function<bool(const Pair&)> sees;
  bool is_exact = true;  ///< no block is visited for nothing
  std::function<void(const OpCall&)> prepare = [](const OpCall&) {};
};
void PrintTo(const Case& test, std::ostream* stream) { *stream << test.name; }

void set_values(const OpCall& call, const char* name, const std::vector<double>& values) {
  cli::from_numbers(values, call.tensor(name));
}

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

/// Documents of lengths 37, 5, 100, 1, 90, ...
int64_t document_of(int64_t j) { return j < 37 ? 4 : j < 42 ? 9 : j < 142 ? 5 : j < 143 ? 6 : 7; }

void set_documents(const OpCall& call) {
  const TensorView documents = call.tensor("aux.doc");
  std::vector<double> values;
  for (int64_t j = 0; j < documents.numel(); ++j) {
    values.push_back(static_cast<double>(document_of(j)));
  }
  cli::from_numbers(values, documents);
}

/// A listed block of 16 queries and 24 keys.
bool is_listed(int64_t row, int64_t col) { return (row * 7 + col * 3) % 5 < 2; }

void set_block_list(const OpCall& call) {
  const TensorView counts = call.tensor("block_counts");
  const TensorView indices = call.tensor("block_indices");
  for (int64_t m = 0; m < indices.shape[2]; ++m) {
    int64_t count = 0;
    for (int64_t n = 0; n < indices.shape[3]; ++n) {
      set(indices, {0, 0, m, n}, 1e9);  // rubbish behind the count
    }
    for (int64_t n = indices.shape[3]; n-- > 0;) {
      if (is_listed(m, n)) {
        set(indices, {0, 0, m, count++}, static_cast<double>(n));
      }
    }
    set(counts, {0, 0, m}, static_cast<double>(count));
  }
}

std::vector<Case> cases() {
  return {
      {"Nothing", ":sq150:sk210:d1", [](const Pair&) { return true; }},
      {"Causal", ":sq150:sk210:causal:d1", [](const Pair& x) { return x.j <= x.p; }},
      {"CausalWithMoreQueries", ":sq210:sk150:causal:d1", [](const Pair& x) { return x.j <= x.p; }},
      {"CausalFromAnOffset", ":sq150:sk210:causal:query_offset=-40:d1",
       [](const Pair& x) { return x.j <= x.i - 40; }},
      {"Window", ":sq150:sk210:window_left=17:window_right=5:d1",
       [](const Pair& x) { return x.j >= x.p - 17 && x.j <= x.p + 5; }},
      {"WindowOfOne", ":sq210:sk210:window_left=0:window_right=0:d1",
       [](const Pair& x) { return x.j == x.p; }},
      {"WindowBeyondTheKeys", ":sq210:sk30:window_left=32:window_right=9:d1",
       [](const Pair& x) { return x.j >= x.p - 32 && x.j <= x.p + 9; }},
      {"CausalWindow", ":sq210:sk150:window_left=40:causal:d1",
       [](const Pair& x) { return x.j >= x.p - 40 && x.j <= x.p; }},
      {"Chunk", ":sq150:sk210:attention_chunk=24:d1",
       [](const Pair& x) { return floor_div(x.p, 24) == floor_div(x.j, 24); }},
      {"ChunkBeforeTheKeys", ":sq210:sk150:attention_chunk=24:causal:d1",
       [](const Pair& x) { return floor_div(x.p, 24) == floor_div(x.j, 24) && x.j <= x.p; }},
      {"ChunkAndWindow", ":sq210:sk210:attention_chunk=70:window_left=20:causal:d1",
       [](const Pair& x) { return x.p / 70 == x.j / 70 && x.j >= x.p - 20 && x.j <= x.p; }},
      {"BlockList",
       ":sq160:sk192:block_rows=16:block_cols=24:block_counts[1,1,10]:block_indices[1,1,10,8]:d1",
       [](const Pair& x) { return is_listed(x.i / 16, x.j / 24); }, true, set_block_list},
      {"BlockListAndCausal",
       ":sq160:sk192:block_rows=16:block_cols=24:block_counts[1,1,10]:block_indices[1,1,10,8]:"
       "causal:d1",
       [](const Pair& x) { return is_listed(x.i / 16, x.j / 24) && x.j <= x.p; }, false,
       set_block_list},
      {"CausalExpression", ":sq150:sk210:mask='k_idx <= q_idx + query_offset':d1",
       [](const Pair& x) { return x.j <= x.p; }},
      {"BandExpression", ":sq150:sk210:mask='abs(q_idx - k_idx) < 30':d1",
       [](const Pair& x) { return std::abs(x.i - x.j) < 30; }},
      {"BandOfHead",
       ":hq3:sq150:sk150:mask='q_idx - k_idx <= w[head] && k_idx <= q_idx':"
       "aux.w.i32[hq]:d1",
       [](const Pair& x) { return x.i - x.j <= x.h * 40 && x.j <= x.i; }, true,
       [](const OpCall& call) {
         set_values(call, "aux.w", {0, 40, 80});
       }},
      {"PrefixLm",
       ":b2:sq180:sk180:mask='k_idx < prefix[batch] || k_idx <= q_idx':"
       "aux.prefix.i32[b]:d1",
       [](const Pair& x) { return x.j < (x.b == 0 ? 70 : 3) || x.j <= x.i; }, true,
       [](const OpCall& call) {
         set_values(call, "aux.prefix", {70, 3});
       }},
      {"Document", ":sq230:sk230:mask='doc[q_idx] == doc[k_idx]':aux.doc.i32[sk]:d1",
       [](const Pair& x) { return document_of(x.i) == document_of(x.j); }, true, set_documents},
      {"CausalDocument",
       ":sq230:sk230:mask='doc[q_idx] == doc[k_idx] && k_idx <= q_idx':aux.doc.i32[sk]:d1",
       [](const Pair& x) { return document_of(x.i) == document_of(x.j) && x.j <= x.i; }, true,
       set_documents},
      {"DocumentAndCausalOption",
       ":sq230:sk230:mask='doc[q_idx] == doc[k_idx]':aux.doc.i32[sk]:causal:d1",
       [](const Pair& x) { return document_of(x.i) == document_of(x.j) && x.j <= x.i; }, true,
       set_documents},
      {"SinkAndWindow",
       ":sq230:sk230:mask='(k_idx < 4 || q_idx - k_idx <= 30) && k_idx <= q_idx':d1",
       [](const Pair& x) { return (x.j < 4 || x.i - x.j <= 30) && x.j <= x.i; }},
      {"Dilated", ":sq230:sk230:mask='k_idx <= q_idx && (q_idx - k_idx) % 5 == 0':d1",
       [](const Pair& x) { return x.j <= x.i && (x.i - x.j) % 5 == 0; }},
      {"DilatedBeyondABlock", ":sq230:sk230:mask='(q_idx - k_idx) % 100 == 0':d1",
       [](const Pair& x) { return (x.i - x.j) % 100 == 0; }},
      {"BlocksOfTheDiagonal", ":sq230:sk230:mask='q_idx / 48 == k_idx / 48':d1",
       [](const Pair& x) { return x.i / 48 == x.j / 48; }, false},
      {"Everything", ":sq150:sk210:mask='1':d1", [](const Pair&) { return true; }},
      {"NothingAtAll", ":sq150:sk210:mask='0':d1", [](const Pair&) { return false; }},
      {"PerHead", ":hq2:sq150:sk150:mask='head == 0 ? k_idx <= q_idx : q_idx - k_idx > 60':d1",
       [](const Pair& x) { return x.h == 0 ? x.j <= x.i : x.i - x.j > 60; }, false},
      {"Elements", ":sq100:sk150:mask='m[q_idx, k_idx] != 0':aux.m.i32[sq,sk]:d1",
       [](const Pair& x) { return (x.i / 30 + x.j / 50) % 2 == 0 || (x.i == 77 && x.j == 3); },
       false,
       [](const OpCall& call) {
         std::vector<double> values;
         for (int64_t i = 0; i < 100; ++i) {
           for (int64_t j = 0; j < 150; ++j) {
             values.push_back((i / 30 + j / 50) % 2 == 0 || (i == 77 && j == 3) ? 1 : 0);
           }
         }
         set_values(call, "aux.m", values);
       }},
      {"Packed", ":cu_seqlens_q={0,70,70,200}:cu_seqlens_k={0,90,95,300}:causal:window_left=50:d1",
       [](const Pair& x) { return x.j <= x.p && x.j >= x.p - 50; }},
      {"Padded", ":b2:sq70:sk200:leftpad_k={5,60}:seqused_k={200,130}:causal:d1",
       [](const Pair& x) { return x.j <= x.p; }},
  };
}

/// A call's masks, for every sequence and head.
class Masks {
 public:
  explicit Masks(const Case& test)
      : owned_(cli::random_call(parse_problem("attention_fwd" + test.text), 1)) {
    test.prepare(owned_.call);
    args_ = *static_cast<const AttentionArgs*>(owned_.call.args());
    problem_ = make_attention_problem(args_, /*is_backward=*/false);
    sequences_ = attention_sequences(problem_, args_);
  }

  /// Calls body(mask, sequence, head).
  template <class Body>
  void for_each(const Body& body) const {
    const AttentionMask mask(problem_, args_);
    for (const Sequence& sequence : sequences_) {
      for (int64_t h = 0; h < problem_.num_heads; ++h) {
        HeadMask head_mask(mask, sequence, h);
        body(head_mask, sequence, h);
      }
    }
  }

 private:
  cli::OwnedCall owned_;
  AttentionArgs args_;
  AttentionProblem problem_;
  std::vector<Sequence> sequences_;
};

enum class Seen : uint8_t { kNone, kSome, kAll };

Seen brute_force(const Case& test, const Sequence& sequence, int64_t head, int64_t q_begin,
                 int64_t q_end, int64_t k_begin, int64_t k_end) {
  int64_t count = 0;
  for (int64_t i = q_begin; i < q_end; ++i) {
    for (int64_t j = k_begin; j < k_end; ++j) {
      count += test.sees({sequence.batch_idx, head, i, j, i + sequence.query_offset});
    }
  }
  if (count == 0) return Seen::kNone;
  return count == (q_end - q_begin) * (k_end - k_begin) ? Seen::kAll : Seen::kSome;
}

/// By block: 0 not visited, 1 visited in part, 2 in full. Checks the runs' own order.
std::vector<int> visits(const std::vector<BlockRun>& runs, int64_t num_blocks) {
  std::vector<int> result(static_cast<size_t>(num_blocks), 0);
  long long last = -1;
  for (const BlockRun& run : runs) {
    EXPECT_LT(run.begin, run.end);
    EXPECT_GE(run.begin, last);
    EXPECT_LE(run.end, num_blocks);
    last = run.end;
    for (long long n = run.begin; n < run.end; ++n) {
      result[static_cast<size_t>(n)] = run.is_full ? 2 : 1;
    }
  }
  return result;
}

class MaskRuns : public testing::TestWithParam<Case> {
 protected:
  static void expect_visit(int visit, Seen seen, const std::string& where) {
    if (seen != Seen::kNone) {
      EXPECT_NE(visit, 0) << "not visited: " << where;
    } else if (GetParam().is_exact) {
      EXPECT_EQ(visit, 0) << "visited for nothing: " << where;
    }
    if (seen != Seen::kAll) {
      EXPECT_NE(visit, 2) << "not full: " << where;
    }
  }

  static std::string where(int64_t h, int64_t m, int64_t n) {
    return "head " + std::to_string(h) + ", query block " + std::to_string(m) + ", key block " +
           std::to_string(n);
  }
};

constexpr std::pair<int64_t, int64_t> kBlocks[] = {{64, 128}, {64, 64}, {96, 128}, {16, 16},
                                                   {7, 5},    {1, 1},   {1, 128}};

TEST_P(MaskRuns, OfKeysAgreeWithEveryPair) {
  const Masks masks(GetParam());
  for (const auto& [block_m, block_n] : kBlocks) {
    masks.for_each(
        [&, m_size = block_m, n_size = block_n](HeadMask& mask, const Sequence& s, int64_t h) {
          std::vector<BlockRun> runs;
          for (int64_t m = 0; m * m_size < s.seqlen_q; ++m) {
            const int64_t q_end = std::min((m + 1) * m_size, s.seqlen_q);
            mask.key_runs(m * m_size, q_end, n_size, &runs);
            const int64_t num_n = (s.seqlen_k + n_size - 1) / n_size;
            const std::vector<int> visited = visits(runs, num_n);
            for (int64_t n = 0; n < num_n; ++n) {
              const int64_t k_end = std::min((n + 1) * n_size, s.seqlen_k);
              expect_visit(visited[static_cast<size_t>(n)],
                           brute_force(GetParam(), s, h, m * m_size, q_end, n * n_size, k_end),
                           where(h, m, n));
            }
          }
        });
  }
}

TEST_P(MaskRuns, OfQueriesAgreeWithEveryPair) {
  const Masks masks(GetParam());
  for (const auto& [block_m, block_n] : kBlocks) {
    masks.for_each(
        [&, m_size = block_m, n_size = block_n](HeadMask& mask, const Sequence& s, int64_t h) {
          std::vector<BlockRun> runs;
          for (int64_t n = 0; n * n_size < s.seqlen_k; ++n) {
            const int64_t k_end = std::min((n + 1) * n_size, s.seqlen_k);
            mask.query_runs(n * n_size, k_end, m_size, &runs);
            const int64_t num_m = (s.seqlen_q + m_size - 1) / m_size;
            const std::vector<int> visited = visits(runs, num_m);
            for (int64_t m = 0; m < num_m; ++m) {
              const int64_t q_end = std::min((m + 1) * m_size, s.seqlen_q);
              expect_visit(visited[static_cast<size_t>(m)],
                           brute_force(GetParam(), s, h, m * m_size, q_end, n * n_size, k_end),
                           where(h, m, n));
            }
          }
        });
  }
}

INSTANTIATE_TEST_SUITE_P(Options, MaskRuns, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& test) { return test.param.name; });

/// Tiles of 64 queries and 128 keys that a forward visits, and those it need not mask.
struct TileCount {
  int64_t visited = 0;
  int64_t full = 0;
};

TileCount count_tiles(
    const std::string& text,
    const std::function<void(const OpCall&)>& prepare = [](const OpCall&) {}) {
  TileCount count;
  const Masks masks({"", text, {}, true, prepare});
  masks.for_each([&](HeadMask& mask, const Sequence& s, int64_t) {
    std::vector<BlockRun> runs;
    for (int64_t q = 0; q < s.seqlen_q; q += 64) {
      mask.key_runs(q, std::min(q + 64, s.seqlen_q), 128, &runs);
      for (const BlockRun& run : runs) {
        count.visited += run.end - run.begin;
        if (run.is_full) count.full += run.end - run.begin;
      }
    }
  });
  return count;
}

TEST(TileVisits, AreAllWithoutAMask) {
  const TileCount count = count_tiles(":sq4096:d1");
  EXPECT_EQ(count.visited, 64 * 32);
  EXPECT_EQ(count.full, 64 * 32);
}

TEST(TileVisits, AreHalfUnderCausal) {
  // Query block m sees keys up to 64 m + 63, so ceil((m + 1) / 2) blocks: 2 (1 + ... + 32) in all;
  // one of them is cut by the diagonal.
  for (const char* text : {":sq4096:causal:d1", ":sq4096:mask='k_idx <= q_idx':d1"}) {
    const TileCount count = count_tiles(text);
    EXPECT_EQ(count.visited, 32 * 33) << text;
    EXPECT_EQ(count.full, 32 * 33 - 64) << text;
  }
}

// flash-attention#2574, PR 2624: a bound of 0 is a bound
TEST(TileVisits, GrowWithTheWindowNotTheLength) {
  // Keys p - 127 to p: a block of 64 queries sees 191 keys in a row, in two blocks; the first two
  // query blocks see one.
  EXPECT_EQ(count_tiles(":sq2048:causal:window_left=127:d1").visited, 32 * 2 - 2);
  EXPECT_EQ(count_tiles(":sq8192:causal:window_left=127:d1").visited, 128 * 2 - 2);
  EXPECT_EQ(count_tiles(":sq4096:window_left=0:window_right=0:d1").visited, 64);
}

TEST(TileVisits, SkipTheMiddleOfSinkAndWindow) {
  // As above, and the block with the sinks for the query blocks whose window has left it.
  const TileCount count =
      count_tiles(":sq8192:mask='(k_idx < 4 || q_idx - k_idx <= 127) && k_idx <= q_idx':d1");
  EXPECT_EQ(count.visited, 128 * 2 - 2 + 124);
}

TEST(TileVisits, KeepToTheirDocument) {
  // Eight documents of 1024: 16 query blocks of each see 8 key blocks.
  const TileCount count = count_tiles(":sq8192:mask='doc[q_idx] == doc[k_idx]':aux.doc.i32[sk]:d1",
                                      [](const OpCall& call) {
                                        std::vector<double> values;
                                        for (int64_t j = 0; j < 8192; ++j)
                                          values.push_back(static_cast<double>(j / 1024));
                                        set_values(call, "aux.doc", values);
                                      });
  EXPECT_EQ(count.visited, 8 * 16 * 8);
}

TEST(TileVisits, OfOneQueryAreItsWindow) {
  EXPECT_EQ(count_tiles(":sq1:sk65536:causal:window_left=255:d1").visited, 2);
}

}  // namespace
}  // namespace flashtile::test
