// SPDX-License-Identifier: Apache-2.0
#include "machine.hpp"

#include <sys/mman.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

namespace emulator {
namespace {

constexpr int kWarpSize = 32;
constexpr size_t kStackBytes = 256 << 10;
constexpr size_t kPage = 4096;

/// kPoll: the fiber looks again whether it can go on.
enum class Waits { kNothing, kPoll, kWarp, kCta, kCluster, kEnd };

struct Copy {
  uint32_t target;
  const void* source;
  int bytes;
  int valid_bytes;
};

struct Fiber {
  Thread thread{};
  ucontext_t context{};
  Waits waits = Waits::kNothing;
  std::vector<std::vector<Copy>> groups;  ///< committed, oldest first
  std::vector<Copy> open;
  bool flag = false;
  int parity = 0;
  std::vector<std::vector<std::function<void()>>> stores, products;  ///< committed groups
  std::vector<std::function<void()>> open_stores, open_products;
};

/// A barrier in shared memory.
struct Barrier {
  int num_arrivals = 0;
  int missing = 0;
  long long missing_bytes = 0;
  uint32_t parity = 0;  ///< of the phase that has not ended

  void end_phase() {
    if (missing != 0 || missing_bytes != 0) return;
    missing = num_arrivals;
    parity ^= 1;
  }
};

/// A load of the copy engine that has not happened yet.
struct BoxLoad {
  uint32_t target;
  TensorMap map;
  uint32_t barrier;
  int place[4];
};

struct Warp {
  char slots[2][kWarpSize][128];
};

/// Shared memory that ends where the address space does.
class GuardedMemory {
 public:
  explicit GuardedMemory(size_t bytes) {
    const size_t whole = (bytes + kPage - 1) / kPage * kPage;
    size_ = whole + kPage;
    base_ = static_cast<char*>(
        mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED) stop("no memory");
    mprotect(base_ + whole, kPage, PROT_NONE);
    data_ = base_ + (whole - bytes) / 16 * 16;
  }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  ~GuardedMemory() { munmap(base_, size_); }
  char* data() const { return data_; }

 private:
  char* base_;
  char* data_;
  size_t size_;
};

struct Cta {
  explicit Cta(size_t shared_bytes) : shared(shared_bytes) {}

  GuardedMemory shared;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Warp> warps;
  bool any_flag = false;
  std::map<int, int> group_counts, group_rounds;  ///< of the barriers of some warps
  std::map<uint32_t, Barrier> barriers;
  std::vector<BoxLoad> loads;
  int polls = 0;  ///< since something has changed
};

struct Machine {
  std::vector<std::unique_ptr<Cta>> cluster;
  Cta* cta = nullptr;  ///< that runs
  std::vector<std::unique_ptr<char[]>> stacks;
  ucontext_t scheduler{};
  Fiber* running = nullptr;
  size_t shared_bytes = 0;
  void (*entry)(void**) = nullptr;
  void** arguments = nullptr;
  uint64_t random = 1;

  uint32_t draw() {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return static_cast<uint32_t>(random >> 16);
  }
};

Machine machine;

void yield(Waits waits) {
  Fiber& self = *machine.running;
  self.waits = waits;
  swapcontext(&self.context, &machine.scheduler);
}

void fiber_main() {
  machine.entry(machine.arguments);
  yield(Waits::kEnd);
}

void do_copy(const Copy& copy) {
  char* target = machine.cta->shared.data() + copy.target;
  std::memcpy(target, copy.source, static_cast<size_t>(copy.valid_bytes));
  std::memset(target + copy.valid_bytes, 0, static_cast<size_t>(copy.bytes - copy.valid_bytes));
}

/// Calls body(pointer into the tensor or null, offset in shared memory, bytes) for each 16 bytes.
template <class Body>
void for_each_piece(const TensorMap& map, const int (&place)[4], uint32_t shared,
                    const Body& body) {
  const int pieces = map.box[0] * map.element_bytes / 16;
  const int per_piece = 16 / map.element_bytes;
  int row = 0;
  for (int z = 0; z < map.box[3]; ++z) {
    for (int y = 0; y < map.box[2]; ++y) {
      for (int x = 0; x < map.box[1]; ++x, ++row) {
        const long long at[3] = {place[1] + x, place[2] + y, place[3] + z};
        char* line = map.data;
        bool is_inside = true;
        for (int d = 0; d < 3; ++d) {
          is_inside = is_inside && at[d] >= 0 && at[d] < map.shape[d + 1];
          line += at[d] * map.stride_bytes[d + 1];
        }
        for (int piece = 0; piece < pieces; ++piece) {
          const uint32_t address = shared + static_cast<uint32_t>(row * map.row_bytes + piece * 16);
          const uint32_t pieces_of_row = static_cast<uint32_t>(map.row_bytes) / 16;
          const uint32_t swizzled = address ^ ((address >> 7 & (pieces_of_row - 1)) << 4);
          const long long column = place[0] + piece * per_piece;
          const long long left = is_inside && column >= 0 ? map.shape[0] - column : 0;
          const int bytes = static_cast<int>(left >= per_piece ? 16
                                             : left <= 0       ? 0
                                                               : left * map.element_bytes);
          body(bytes > 0 ? line + column * map.element_bytes : nullptr, swizzled, bytes);
        }
      }
    }
  }
}

void do_load(const BoxLoad& load) {
  long long total = 0;
  for_each_piece(load.map, load.place, load.target, [&](char* from, uint32_t to, int bytes) {
    check_shared(to, 16, 16);
    std::memset(machine.cta->shared.data() + to, 0, 16);
    if (bytes > 0) std::memcpy(machine.cta->shared.data() + to, from, static_cast<size_t>(bytes));
    total += 16;
  });
  Barrier& barrier = machine.cta->barriers.at(load.barrier);
  barrier.missing_bytes -= total;
  barrier.end_phase();
  machine.cta->polls = 0;
}

/// Does what is to be done, or some of it, in any order.
void run_engine() {
  while (!machine.cta->loads.empty() && machine.draw() % 4 == 0) {
    const size_t which = machine.draw() % machine.cta->loads.size();
    const BoxLoad load = machine.cta->loads[which];
    machine.cta->loads.erase(machine.cta->loads.begin() + static_cast<long>(which));
    do_load(load);
  }
}

void run_all(std::vector<std::function<void()>>& group) {
  for (const auto& work : group) work();
  group.clear();
}

/// All groups but the newest `pending`.
void run_groups(std::vector<std::vector<std::function<void()>>>& groups, int pending) {
  while (groups.size() > static_cast<size_t>(pending)) {
    run_all(groups.front());
    groups.erase(groups.begin());
  }
}

/// True when every thread of [begin, end) that has not ended waits for `waits`.
bool all_wait(size_t begin, size_t end, Waits waits) {
  bool has_any = false;
  for (size_t i = begin; i < end; ++i) {
    const Waits of = machine.cta->fibers[i]->waits;
    if (of == Waits::kEnd) continue;
    if (of != waits) return false;
    has_any = true;
  }
  return has_any;
}

/// Lets threads of [begin, end) that wait for `waits` go on.
void release(Waits waits, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    Fiber& fiber = *machine.cta->fibers[i];
    if (fiber.waits == waits) fiber.waits = Waits::kNothing;
  }
}

/// Runs the CTA until its threads have ended, which gives true, or wait for the cluster.
bool run_cta() {
  const size_t count = machine.cta->fibers.size();
  const size_t num_warps = count / kWarpSize;
  while (true) {
    run_engine();
    if (all_wait(0, count, Waits::kCta)) {
      machine.cta->any_flag = false;
      for (auto& fiber : machine.cta->fibers) {
        machine.cta->any_flag = machine.cta->any_flag || fiber->flag;
      }
      release(Waits::kCta, 0, count);
    }
    if (all_wait(0, count, Waits::kCluster)) return false;
    // A warp that can go on, from a drawn one.
    const size_t first = machine.draw() % num_warps;
    bool has_run = false;
    for (size_t w = 0; w < num_warps && !has_run; ++w) {
      const size_t warp = (first + w) % num_warps;
      const size_t begin = warp * kWarpSize;
      if (all_wait(begin, begin + kWarpSize, Waits::kWarp)) {
        release(Waits::kWarp, begin, begin + kWarpSize);
      }
      for (size_t i = begin; i < begin + kWarpSize; ++i) {
        Fiber& fiber = *machine.cta->fibers[i];
        if (fiber.waits != Waits::kNothing && fiber.waits != Waits::kPoll) continue;
        if (fiber.waits == Waits::kNothing) machine.cta->polls = 0;
        has_run = true;
        machine.running = &fiber;
        swapcontext(&machine.scheduler, &fiber.context);
      }
    }
    if (has_run || all_wait(0, count, Waits::kCta)) continue;
    for (const auto& fiber : machine.cta->fibers) {
      if (fiber->waits != Waits::kEnd) {
        stop("threads wait for each other: a barrier is not reached by all");
      }
    }
    return true;
  }
}

/// Runs all CTAs of the cluster, in turns from one barrier of theirs to the next.
void run_cluster() {
  const size_t count = machine.cluster.size();
  for (size_t num_ended = 0; num_ended < count;) {
    const size_t first = machine.draw() % count;
    num_ended = 0;
    for (size_t i = 0; i < count; ++i) {
      machine.cta = machine.cluster[(first + i) % count].get();
      if (run_cta()) ++num_ended;
    }
    for (const auto& cta : machine.cluster) {
      machine.cta = cta.get();
      release(Waits::kCluster, 0, cta->fibers.size());
    }
  }
}

std::unique_ptr<Fiber> make_fiber(const Thread& thread, char* stack) {
  auto fiber = std::make_unique<Fiber>();
  fiber->thread = thread;
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = stack;
  fiber->context.uc_stack.ss_size = kStackBytes;
  fiber->context.uc_link = nullptr;
  makecontext(&fiber->context, fiber_main, 0);
  return fiber;
}

/// Nothing may be on its way.
void check_ended(const Cta& cta) {
  if (!cta.loads.empty()) stop("copies of the engine were never waited for");
  for (const auto& fiber : cta.fibers) {
    if (!fiber->open.empty()) stop("copies of a thread were never waited for");
    if (!fiber->stores.empty() || !fiber->open_stores.empty()) {
      stop("stores of a thread were never waited for");
    }
  }
}

}  // namespace

void stop(const char* text) {
  std::fprintf(stderr, "emulated GPU: %s\n", text);
  std::abort();
}

const Thread& current() { return machine.running->thread; }

char* shared_memory() { return machine.cta->shared.data(); }

void check_shared(uint32_t address, int bytes, int alignment) {
  if (address % static_cast<uint32_t>(alignment) != 0) stop("a shared address is not aligned");
  if (address + static_cast<uint32_t>(bytes) > machine.shared_bytes) {
    stop("a shared address is out of range");
  }
}

void sync_cta() { sync_cta_any(false); }

bool sync_cta_any(bool value) {
  machine.running->flag = value;
  yield(Waits::kCta);
  return machine.cta->any_flag;
}

void sync_warp() { yield(Waits::kWarp); }

void sync_cluster() { yield(Waits::kCluster); }

char* cluster_memory(uint32_t cluster_address, int bytes) {
  const uint32_t address = cluster_address & 0xffffffu;
  const size_t rank = cluster_address >> 24;
  check_shared(address, bytes, bytes);
  if (rank == 0 || rank > machine.cluster.size()) stop("a CTA is not in the cluster");
  return machine.cluster[rank - 1]->shared.data() + address;
}

void sync_group(int id, int num_threads) {
  int& count = machine.cta->group_counts[id];
  int& round = machine.cta->group_rounds[id];
  const int own_round = round;
  if (++count == num_threads) {
    count = 0;
    ++round;
  }
  // Lanes of a warp go on together.
  do yield(Waits::kWarp);
  while (round == own_round);
}

void arrive_at_group(int id, int num_threads) {
  if (++machine.cta->group_counts[id] < num_threads) return;
  machine.cta->group_counts[id] = 0;
  ++machine.cta->group_rounds[id];
}

void init_barrier(uint32_t barrier, int num_arrivals) {
  check_shared(barrier, 8, 8);
  machine.cta->barriers[barrier] = {num_arrivals, num_arrivals, 0, 0};
}

void arrive(uint32_t barrier, int expected_bytes) {
  Barrier& of = machine.cta->barriers.at(barrier);
  if (of.missing == 0) stop("more arrivals than a barrier counts");
  of.missing_bytes += expected_bytes;
  --of.missing;
  of.end_phase();
}

void wait_barrier(uint32_t barrier, uint32_t parity) {
  constexpr int kManyPolls = 1 << 22;
  while (machine.cta->barriers.at(barrier).parity == parity) {
    if (++machine.cta->polls > kManyPolls) {
      std::fprintf(stderr, "thread %d waits for barrier at %u\n", current().thread_idx, barrier);
      stop("threads wait for each other: a phase of a barrier does not end");
    }
    yield(Waits::kPoll);
  }
}

void load_box(uint32_t target, const void* map, uint32_t barrier, const int (&place)[4]) {
  if (target % 128 != 0) stop("the target of a box is not aligned");
  BoxLoad load = {target, {}, barrier, {place[0], place[1], place[2], place[3]}};
  std::memcpy(&load.map, map, sizeof load.map);
  machine.cta->loads.push_back(load);
}

void store_box(const void* map, uint32_t source, const int (&place)[4]) {
  TensorMap of;
  std::memcpy(&of, map, sizeof of);
  const int p0 = place[0], p1 = place[1], p2 = place[2], p3 = place[3];
  machine.running->open_stores.push_back([=] {
    for_each_piece(of, {p0, p1, p2, p3}, source, [&](char* to, uint32_t from, int bytes) {
      check_shared(from, 16, 16);
      if (bytes > 0) std::memcpy(to, machine.cta->shared.data() + from, static_cast<size_t>(bytes));
    });
  });
}

void commit_stores() {
  Fiber& self = *machine.running;
  self.stores.push_back(std::move(self.open_stores));
  self.open_stores.clear();
}

void wait_for_stores() {
  // Others run meanwhile, and may do damage.
  if (machine.draw() % 2 == 0) yield(Waits::kPoll);
  run_groups(machine.running->stores, 0);
}

void start_product(std::function<void()> work) {
  machine.running->open_products.push_back(std::move(work));
}

void commit_products() {
  Fiber& self = *machine.running;
  self.products.push_back(std::move(self.open_products));
  self.open_products.clear();
  if (machine.draw() % 4 == 0) run_groups(self.products, 0);
}

void wait_for_products(int pending) {
  sync_warp();
  run_groups(machine.running->products, pending);
  sync_warp();
}

const char* exchange(const void* data, int bytes) {
  Fiber& self = *machine.running;
  const int lane = self.thread.thread_idx % kWarpSize;
  Warp& warp = machine.cta->warps[static_cast<size_t>(self.thread.thread_idx / kWarpSize)];
  // Two sets of slots in turns: nobody is two exchanges ahead of a lane that still reads.
  const int parity = self.parity;
  self.parity ^= 1;
  std::memcpy(warp.slots[parity][lane], data, static_cast<size_t>(bytes));
  yield(Waits::kWarp);
  return warp.slots[parity][0];
}

void copy_async(uint32_t target, const void* source, int bytes, int valid_bytes) {
  check_shared(target, bytes, bytes);
  if (reinterpret_cast<uintptr_t>(source) % static_cast<uintptr_t>(bytes) != 0) {
    stop("the source of a copy is not aligned");
  }
  const Copy copy = {target, source, bytes, valid_bytes};
  if (machine.draw() % 2 == 0) {
    do_copy(copy);
  } else {
    machine.running->open.push_back(copy);
  }
}

void copy_async_commit() {
  Fiber& self = *machine.running;
  self.groups.push_back(std::move(self.open));
  self.open.clear();
}

void copy_async_wait(int pending) {
  Fiber& self = *machine.running;
  while (self.groups.size() > static_cast<size_t>(pending)) {
    for (const Copy& copy : self.groups.front()) do_copy(copy);
    self.groups.erase(self.groups.begin());
  }
}

void run_grid(void (*entry)(void**), void** arguments, long long num_ctas, int num_threads,
              size_t shared_bytes, int cluster_size) {
  if (num_threads % kWarpSize != 0) stop("threads do not fill warps");
  if (num_ctas % cluster_size != 0) stop("CTAs do not fill clusters");
  machine.shared_bytes = shared_bytes;
  machine.entry = entry;
  machine.arguments = arguments;
  const char* seed = std::getenv("FLASHTILE_EMULATOR_SEED");
  machine.random = 0x9E3779B97F4A7C15u + (seed == nullptr ? 0 : std::strtoull(seed, nullptr, 10));
  const auto ctas = static_cast<size_t>(cluster_size);
  while (machine.stacks.size() < ctas * static_cast<size_t>(num_threads)) {
    machine.stacks.push_back(std::make_unique<char[]>(kStackBytes));
  }
  machine.cluster.clear();
  for (size_t c = 0; c < ctas; ++c) machine.cluster.push_back(std::make_unique<Cta>(shared_bytes));
  for (long long first = 0; first < num_ctas; first += cluster_size) {
    size_t stack = 0;
    for (size_t c = 0; c < ctas; ++c) {
      Cta& cta = *machine.cluster[c];
      std::memset(cta.shared.data(), 0xff, shared_bytes);
      cta.warps.assign(static_cast<size_t>(num_threads / kWarpSize), Warp{});
      cta.fibers.clear();
      cta.barriers.clear();
      cta.group_counts.clear();
      cta.polls = 0;
      for (int t = 0; t < num_threads; ++t) {
        const Thread thread = {t, num_threads, first + static_cast<long long>(c), num_ctas};
        cta.fibers.push_back(make_fiber(thread, machine.stacks[stack++].get()));
      }
    }
    run_cluster();
    for (const auto& cta : machine.cluster) check_ended(*cta);
  }
}

}  // namespace emulator
