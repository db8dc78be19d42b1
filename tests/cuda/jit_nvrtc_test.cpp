// SPDX-License-Identifier: Apache-2.0
//
// The compiler and the reader of its machine code, without a GPU.

#include "core/gpu_model.hpp"
#include "cuda/jit/cubin.hpp"
#include "cuda/jit/nvrtc.hpp"
#include "cuda/jit_support.hpp"
#include "flashtile/error.hpp"

namespace flashtile::cuda {
namespace {

/// Sums what each thread reads, through shared memory.
constexpr const char* kSumText = R"(
extern "C" __global__ void __launch_bounds__(128) sum(const float* in, float* out, int count) {
  __shared__ float part[192];
  float total = 0;
  for (int i = threadIdx.x; i < count; i += 128) total += in[i];
  part[threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < 128; ++i) total += part[i];
    out[blockIdx.x] = total;
  }
}
)";

/// Keeps `count` values alive at a time.
std::string hungry_text(int count) {
  return "extern \"C\" __global__ void hungry(const float* in, float* out) {\n"
         "  float value[" +
         std::to_string(count) +
         "];\n"
         "  _Pragma(\"unroll\") for (int i = 0; i < " +
         std::to_string(count) +
         "; ++i) value[i] = in[i * 977 + threadIdx.x];\n"
         "  __syncthreads();\n"
         "  _Pragma(\"unroll\") for (int i = 0; i < " +
         std::to_string(count) +
         "; ++i) out[i * 991 + threadIdx.x] = value[i] * value[(i * 7 + 3) % " +
         std::to_string(count) + "];\n}\n";
}

class JitNvrtc : public JitFolder {
 protected:
  void SetUp() override {
    JitFolder::SetUp();
    if (Nvrtc::get() == nullptr) GTEST_SKIP() << Nvrtc::fault();
  }
  static CompiledKernel compile(const std::string& entry, const std::string& text,
                                const std::string& arch, std::vector<std::string> flags = {}) {
    return Nvrtc::get()->compile({entry, text, arch, std::move(flags)});
  }
  static std::string error_of(const Program& program) {
    try {
      Nvrtc::get()->compile(program);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST_F(JitNvrtc, CompilesForEveryArchitecture) {
  for (const std::string& arch : known_gpu_archs()) {
    if (!Nvrtc::get()->knows(arch)) continue;
    const CompiledKernel kernel = compile("sum", kSumText, arch);
    EXPECT_EQ(kernel.entry, "sum");
    EXPECT_EQ(kernel.arch, arch);
    EXPECT_EQ(kernel.compiler_version, Nvrtc::get()->version());
    EXPECT_EQ(kernel.usage.static_shared_bytes, 192 * 4) << arch;
    EXPECT_GT(kernel.usage.num_registers, 7) << arch;
    EXPECT_LT(kernel.usage.num_registers, 65) << arch;
    EXPECT_EQ(kernel.usage.spill_store_bytes, 0) << arch;
    EXPECT_EQ(kernel.usage.stack_bytes, 0) << arch;
    EXPECT_EQ(kernel.notes, "") << arch;
  }
}

TEST_F(JitNvrtc, EqualTextsGiveEqualCode) {
  EXPECT_EQ(compile("sum", kSumText, "sm_80").cubin, compile("sum", kSumText, "sm_80").cubin);
}

TEST_F(JitNvrtc, RegistersStackAndSpillsAreReported) {
  const CompiledKernel free_one = compile("hungry", hungry_text(96), "sm_80");
  EXPECT_GT(free_one.usage.num_registers, 96);
  EXPECT_EQ(free_one.usage.spill_store_bytes, 0);
  const CompiledKernel tight = compile("hungry", hungry_text(96), "sm_80", {"-maxrregcount=64"});
  EXPECT_LE(tight.usage.num_registers, 64);
  // At least what 96 values of 4 bytes need beyond all registers.
  EXPECT_GE(tight.usage.spill_store_bytes, (96 - 64) * 4);
  EXPECT_GE(tight.usage.spill_load_bytes, tight.usage.spill_store_bytes);
  EXPECT_GE(tight.usage.stack_bytes, (96 - 64) * 4);
}

TEST_F(JitNvrtc, CubinSaysWhatTheAssemblerSays) {
  for (const char* arch : {"sm_80", "sm_90a", "sm_120"}) {
    if (!Nvrtc::get()->knows(arch)) continue;
    const CompiledKernel kernel = compile("sum", kSumText, arch);
    ResourceUsage read = read_cubin_usage(kernel.cubin, "sum");
    EXPECT_EQ(read, kernel.usage) << arch;
    EXPECT_THROW(read_cubin_usage(kernel.cubin, "product"), Error);
  }
}

TEST_F(JitNvrtc, DamagedCubinsNeverCrashTheReader) {
  const std::string cubin = compile("sum", kSumText, "sm_80").cubin;
  int num_refused = 0;
  for (size_t length = 0; length < cubin.size(); length += 13) {
    try {
      read_cubin_usage(cubin.substr(0, length), "sum");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIo);
      ++num_refused;
    }
  }
  EXPECT_GT(num_refused, 100);
  for (size_t i = 0; i < cubin.size(); ++i) {
    std::string changed = cubin;
    changed[i] = static_cast<char>(~changed[i]);
    try {
      read_cubin_usage(changed, "sum");
    } catch (const Error&) {
    }
  }
}

TEST_F(JitNvrtc, ErrorsHoldTheLog) {
  const std::string text =
      error_of({"bad", "extern \"C\" __global__ void bad() {\n  nonsense;\n}", "sm_80", {}});
  for (const char* part : {"bad: NVRTC", "sm_80", "bad.cu(2)", "nonsense"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }
  EXPECT_NE(error_of({"other", kSumText, "sm_80", {}}).find("no kernel 'other'"),
            std::string::npos);
  EXPECT_NE(error_of({"sum", kSumText, "sm_80", {"--nonsense"}}).find("nonsense"),
            std::string::npos);
}

TEST_F(JitNvrtc, UnknownArchitecturesAreRefusedWithWhatIsKnown) {
  const std::string text = error_of({"sum", kSumText, "sm_999", {}});
  EXPECT_NE(text.find("does not know sm_999, only"), std::string::npos) << text;
  EXPECT_NE(text.find(" 90"), std::string::npos) << text;
  for (const char* arch : {"", "sm_", "90", "sm_9x"}) EXPECT_FALSE(Nvrtc::get()->knows(arch));
}

TEST_F(JitNvrtc, DeviceHeadersAreThereToInclude) {
  const std::string text =
      "#include \"variant/philox.hpp\"\n#include \"variant/philox.hpp\"\n"
      "extern \"C\" __global__ void bits(unsigned int* out) {\n"
      "  out[threadIdx.x] = flashtile::variant::dropout_bits(7, 0, 1, 2, threadIdx.x);\n}\n";
  EXPECT_GT(compile("bits", text, "sm_80").usage.num_registers, 8);
}

TEST(JitCompileLog, SpillsAreThoseOfTheKernelAndNotesAreNews) {
  CompiledKernel kernel;
  read_compile_log(
      "probe.cu(3): warning #177-D: variable \"x\" was declared but never referenced\n"
      "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
      "serialized due to non wgmma instructions defining accumulator registers\n"
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function 'probe' for 'sm_90a'\n"
      "ptxas info    : Function properties for probe_helper\n"
      "    8 bytes stack frame, 1 bytes spill stores, 2 bytes spill loads\n"
      "ptxas info    : Function properties for probe\n"
      "ptxas         .     128 bytes stack frame, 120 bytes spill stores, 136 bytes spill loads\n"
      "ptxas info    : Used 168 registers, used 1 barriers, 256 bytes smem\n",
      "probe", kernel);
  EXPECT_EQ(kernel.usage.spill_store_bytes, 120);
  EXPECT_EQ(kernel.usage.spill_load_bytes, 136);
  EXPECT_NE(kernel.notes.find("never referenced"), std::string::npos);
  EXPECT_NE(kernel.notes.find("C7510"), std::string::npos);
  EXPECT_EQ(kernel.notes.find("registers, used"), std::string::npos);
  EXPECT_EQ(kernel.notes.find("gmem"), std::string::npos);
}

}  // namespace
}  // namespace flashtile::cuda
