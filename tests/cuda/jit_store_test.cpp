// SPDX-License-Identifier: Apache-2.0
//
// Where kernels come from, in which order, and how often they are made.
#include <fcntl.h>
#include <sys/time.h>

#include <thread>

#include "cuda/jit/kernel_store.hpp"
#include "cuda/jit_support.hpp"
#include "flashtile/error.hpp"

namespace flashtile::cuda {
namespace {

class JitStore : public JitFolder {
 protected:
  /// A compiler that leaves a byte in a file for each time that it is called, from any process.
  std::function<CompiledKernel(const Program&)> slow_compiler(int milliseconds = 0) const {
    return [this, milliseconds](const Program& program) {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      const int file = ::open(path("calls").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      EXPECT_EQ(::write(file, "x", 1), 1);
      ::close(file);
      CompiledKernel kernel = sample_kernel(500);
      kernel.entry = program.entry;
      kernel.arch = program.arch;
      return kernel;
    };
  }
  size_t num_calls() const { return read_all(path("calls")).size(); }

  KernelStore::Options options() const {
    KernelStore::Options options;
    options.cache_folder = path("cache");
    options.cache_bytes = int64_t{1} << 30;
    options.compile = slow_compiler();
    return options;
  }
  KernelStore::Options without_compiler() const {
    KernelStore::Options given = options();
    given.compile = nullptr;
    given.no_compiler = "the test has none";
    return given;
  }
  static std::string text_of_error(KernelStore& store, const Program& program) {
    try {
      store.get(program);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST_F(JitStore, MemoryThenDiskThenCompiler) {
  KernelStore first(options(), nullptr);
  const auto kernel = first.get(sample_program());
  EXPECT_EQ(first.get(sample_program()), kernel);
  EXPECT_EQ(num_calls(), 1u);
  EXPECT_EQ(first.counts().compiled, 1);
  KernelStore second(options(), nullptr);
  EXPECT_TRUE(is_same(*second.get(sample_program()), *kernel));
  EXPECT_EQ(num_calls(), 1u);
  EXPECT_EQ(second.counts().from_disk, 1);
  EXPECT_EQ(second.counts().compiled, 0);
}

TEST_F(JitStore, PackComesBeforeAll) {
  CompiledKernel packed = sample_kernel(700, 9);
  write_kernel_pack(path("p"), {{key_of(sample_program()), packed}});
  KernelStore(options(), nullptr).get(sample_program());
  auto given = without_compiler();
  given.pack_paths = {path("p")};
  KernelStore store(given, nullptr);
  EXPECT_TRUE(is_same(*store.get(sample_program()), packed));
  EXPECT_EQ(store.counts().from_packs, 1);
  EXPECT_EQ(store.counts().from_disk, 0);
}

TEST_F(JitStore, CompilerIsLookedForOnlyWhenItIsNeeded) {
  KernelStore(options(), nullptr).get(sample_program());
  int num_searches = 0;
  KernelStore store(without_compiler(), [&](KernelStore::Options& found) {
    ++num_searches;
    found.compile = slow_compiler();
  });
  store.get(sample_program());
  EXPECT_EQ(store.fault(), "");
  EXPECT_EQ(num_searches, 0);
  store.get(sample_program("sm_86"));
  store.get(sample_program("sm_89"));
  EXPECT_EQ(num_searches, 1);
}

TEST_F(JitStore, OneCompilationForManyThreads) {
  KernelStore::Options given = options();
  given.compile = slow_compiler(50);
  KernelStore store(given, nullptr);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] { store.get(sample_program(i % 2 == 0 ? "sm_80" : "sm_86")); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_calls(), 2u);
  EXPECT_EQ(store.counts().compiled, 2);
}

TEST_F(JitStore, OneCompilationForManyProcesses) {
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    children.push_back(start_child([this] {
      KernelStore::Options given = options();
      given.compile = slow_compiler(200);
      KernelStore store(given, nullptr);
      return is_same(*store.get(sample_program()), sample_kernel(500)) ? 0 : 1;
    }));
  }
  for (pid_t child : children) EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(num_calls(), 1u);
}

TEST_F(JitStore, ProcessesGoOnWhereTheCompilingOneIsKilled) {
  KernelStore::Options given = options();
  given.compile = slow_compiler(10000);
  const pid_t killed = start_child([&] {
    KernelStore(given, nullptr).get(sample_program());
    return 0;
  });
  ::usleep(100000);
  const pid_t waiting = start_child([this] {
    KernelStore store(options(), nullptr);
    return is_same(*store.get(sample_program()), sample_kernel(500)) ? 0 : 1;
  });
  ::usleep(100000);
  EXPECT_EQ(num_calls(), 0u) << "the second one waits";
  ::kill(killed, SIGKILL);
  wait_for(killed);
  EXPECT_EQ(wait_for(waiting), 0);
  EXPECT_EQ(num_calls(), 1u);
}

TEST_F(JitStore, DamagedEntriesAreMadeAgain) {
  KernelStore(options(), nullptr).get(sample_program());
  const std::string entry = path("cache/" + to_hex(key_of(sample_program())) + ".kernel");
  std::string bytes = read_all(entry);
  bytes[bytes.size() / 2] = static_cast<char>(~bytes[bytes.size() / 2]);
  write_all(entry, bytes);
  KernelStore(options(), nullptr).get(sample_program());
  EXPECT_EQ(num_calls(), 2u);
  KernelStore(options(), nullptr).get(sample_program());
  EXPECT_EQ(num_calls(), 2u);
}

TEST_F(JitStore, KernelsOfACompilerThatIsNewerThanTheDriverAreLeftAlone) {
  KernelStore(options(), nullptr).get(sample_program());  // by 13.0
  write_kernel_pack(path("p"), {{key_of(sample_program()), sample_kernel(500)}});
  KernelStore::Options old_driver = options();
  old_driver.pack_paths = {path("p")};
  old_driver.max_compiler_major = 12;
  KernelStore(old_driver, nullptr).get(sample_program());
  EXPECT_EQ(num_calls(), 2u);
  old_driver.max_compiler_major = 13;
  KernelStore(old_driver, nullptr).get(sample_program());
  EXPECT_EQ(num_calls(), 2u);
}

TEST_F(JitStore, OlderArchitectureOfThePackServesWhereNothingElseDoes) {
  const CompiledKernel for_80 = sample_kernel(500, 1);
  write_kernel_pack(path("p"), {{key_of(sample_program("sm_80")), for_80},
                                {key_of(sample_program("sm_90a")), sample_kernel(500, 2)},
                                {key_of(sample_program("sm_120")), sample_kernel(500, 3)}});
  KernelStore::Options given = without_compiler();
  given.pack_paths = {path("p")};
  KernelStore store(given, nullptr);
  EXPECT_TRUE(is_same(*store.get(sample_program("sm_89")), for_80));
  EXPECT_TRUE(is_same(*store.get(sample_program("sm_121")), sample_kernel(500, 3)));
  EXPECT_THROW(store.get(sample_program("sm_100")), Error);
  given.compile = slow_compiler();
  EXPECT_EQ(KernelStore(given, nullptr).get(sample_program("sm_89"))->arch, "sm_89");
}

TEST_F(JitStore, WhatIsFoundNowhereSaysSo) {
  write_kernel_pack(path("p"), {{key_of(sample_program("sm_90a")), sample_kernel(5)}});
  KernelStore::Options given = without_compiler();
  given.pack_paths = {path("p"), path("missing")};
  KernelStore store(given, nullptr);
  const std::string text = text_of_error(store, sample_program("sm_80"));
  for (const char* part : {"sample", "sm_80", "the test has none", "not in the kernel pack",
                           "missing: cannot be opened"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }
  EXPECT_EQ(store.pack_faults().size(), 1u);
}

TEST_F(JitStore, FaultIsThereWhereNoKernelCanBeGot) {
  EXPECT_EQ(KernelStore(without_compiler(), nullptr).fault(), "the test has none");
  EXPECT_EQ(KernelStore(options(), nullptr).fault(), "");
  write_kernel_pack(path("p"), {{key_of(sample_program()), sample_kernel(5)}});
  KernelStore::Options given = without_compiler();
  given.pack_paths = {path("p")};
  EXPECT_EQ(KernelStore(given, nullptr).fault(), "");
  KernelStore(options(), nullptr).get(sample_program());
  EXPECT_EQ(KernelStore(without_compiler(), nullptr).fault(), "") << "the cache has one";
}

TEST_F(JitStore, WhatDoesNotCompileFailsOnceAndItsTextIsKept) {
  KernelStore::Options given = options();
  int num_tries = 0;
  given.compile = [&](const Program&) -> CompiledKernel {
    ++num_tries;
    throw Error(ErrorCode::kInternal, "sample.cu(3): error: expected a ;");
  };
  KernelStore store(given, nullptr);
  for (int i = 0; i < 3; ++i) {
    const std::string text = text_of_error(store, sample_program());
    EXPECT_NE(text.find("expected a ;"), std::string::npos);
    const size_t at = text.find(path("cache/"));
    ASSERT_NE(at, std::string::npos) << text;
    EXPECT_EQ(read_all(text.substr(at)), sample_program().text);
  }
  EXPECT_EQ(num_tries, 1);
}

TEST_F(JitStore, PackThatIsAddedLaterHelps) {
  KernelStore store(without_compiler(), nullptr);
  EXPECT_THROW(store.get(sample_program()), Error);
  EXPECT_THROW(store.add_pack(path("missing")), Error);
  write_kernel_pack(path("p"), {{key_of(sample_program()), sample_kernel(5)}});
  store.add_pack(path("p"));
  EXPECT_TRUE(is_same(*store.get(sample_program()), sample_kernel(5)));
}

TEST_F(JitStore, RemakeReplacesWhatIsOnTheDisk) {
  KernelStore(options(), nullptr).get(sample_program());
  KernelStore::Options given = options();
  given.compile = [](const Program&) { return sample_kernel(900, 4); };
  KernelStore store(given, nullptr);
  EXPECT_TRUE(is_same(*store.get(sample_program()), sample_kernel(500)));
  EXPECT_TRUE(is_same(*store.remake(sample_program()), sample_kernel(900, 4)));
  EXPECT_TRUE(is_same(*store.get(sample_program()), sample_kernel(900, 4)));
  EXPECT_TRUE(
      is_same(*KernelStore(options(), nullptr).get(sample_program()), sample_kernel(900, 4)));
  EXPECT_THROW(KernelStore(without_compiler(), nullptr).remake(sample_program()), Error);
}

TEST_F(JitStore, WithoutAFolderKernelsAreKeptInMemory) {
  KernelStore::Options given = options();
  given.cache_folder.clear();
  KernelStore store(given, nullptr);
  store.get(sample_program());
  store.get(sample_program());
  EXPECT_EQ(num_calls(), 1u);
}

}  // namespace
}  // namespace flashtile::cuda
