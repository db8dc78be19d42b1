// SPDX-License-Identifier: Apache-2.0
#include "files/safetensors.hpp"
#include "unit/files_helpers.hpp"

namespace flashtile::cli {
namespace {

std::string safetensors_bytes(const std::string& header, const std::string& data) {
  return little_endian(header.size(), 8) + header + data;
}

/// One f32 tensor "x" of shape (2) at the given offsets, among other text of the header.
std::string one_tensor(const std::string& begin, const std::string& end) {
  return R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[)" + begin + "," + end + "]}}";
}

TEST(SafetensorsFile, ReadsBytesWrittenByHand) {
  const std::string header = R"({"__metadata__":{"note":"by hand","empty":""},)"
                             R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]},)"
                             R"("a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
                             R"("none":{"dtype":"F64","shape":[0,3],"data_offsets":[8,8]},)"
                             R"("scalar":{"dtype":"U8","shape":[],"data_offsets":[12,13]}})";
  // 1.0f, -2.5f; bf16 1.0 is 3f80, -2.0 is c000.
  const std::string data = little_endian(0x3f800000, 4) + little_endian(0xc0200000, 4) +
                           little_endian(0x3f80, 2) + little_endian(0xc000, 2) + "\x2a";
  const AlignedText file(safetensors_bytes(header, data));
  const TensorFile read = parse_safetensors(file.bytes(), "a.safetensors");
  EXPECT_EQ(read.metadata, (Metadata{{"note", "by hand"}, {"empty", ""}}));
  ASSERT_EQ(read.tensors.size(), 4u);
  EXPECT_EQ(to_string(read.tensors.at("a")), "f32 (1, 2)");
  EXPECT_EQ(element<float>(read.tensors.at("a"), {0, 1}), -2.5f);
  EXPECT_EQ(read.tensors.at("b").dtype, DType::kBF16);
  EXPECT_EQ(element<uint16_t>(read.tensors.at("b"), {1}), 0xc000);
  EXPECT_EQ(read.tensors.at("none").numel(), 0);
  EXPECT_EQ(element<uint8_t>(read.tensors.at("scalar"), {}), 42);
}

TEST(SafetensorsFile, EveryDtypeHasItsName) {
  const std::pair<const char*, DType> kTypes[] = {
      {"F64", DType::kF64},   {"F32", DType::kF32}, {"F16", DType::kF16},
      {"BF16", DType::kBF16}, {"I64", DType::kI64}, {"I32", DType::kI32},
      {"U8", DType::kU8},     {"I8", DType::kI8},   {"F8_E4M3", DType::kE4M3},
      {"BOOL", DType::kBool}};
  for (const auto& [text, dtype] : kTypes) {
    const auto bytes = static_cast<size_t>(dtype_bytes(dtype));
    const AlignedText file(safetensors_bytes(std::string(R"({"x":{"dtype":")") + text +
                                                 R"(","shape":[1],"data_offsets":[0,)" +
                                                 std::to_string(bytes) + "]}}",
                                             std::string(bytes, '\1')));
    EXPECT_EQ(parse_safetensors(file.bytes(), "a").tensors.at("x").dtype, dtype) << text;
  }
}

TEST(SafetensorsFile, UnalignedTensorsAreCopied) {
  // A header of odd length, so that no f32 in the data is aligned.
  std::string header = one_tensor("0", "8");
  if (header.size() % 2 == 0) header += ' ';
  const AlignedText file(
      safetensors_bytes(header, little_endian(0x3f800000, 4) + little_endian(0xc0200000, 4)));
  const TensorFile read = parse_safetensors(file.bytes(), "a");
  const TensorView tensor = read.tensors.at("x");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data) % 4, 0u);
  EXPECT_EQ(element<float>(tensor, {0}), 1.0f);
  EXPECT_EQ(element<float>(tensor, {1}), -2.5f);
}

TEST(SafetensorsFile, EveryCutIsRefused) {
  const std::string whole = safetensors_bytes(one_tensor("0", "8"), std::string(8, '\0'));
  for (size_t size = 0; size < whole.size(); ++size) {
    const AlignedText file(whole.substr(0, size));
    EXPECT_THROW(parse_safetensors(file.bytes(), "cut"), Error) << size;
  }
}

TEST(SafetensorsFile, DamagedFilesGiveOneClearLine) {
  const std::string eight(8, '\0');
  const std::string shape_part = R"("shape":[2],"data_offsets":[0,8])";
  const struct {
    std::string header, data, part;
  } kCases[] = {
      {one_tensor("0", "8"), eight.substr(1), "cut short"},
      {one_tensor("0", "8"), eight + "x", "has 9 bytes of data, its header names 8"},
      {one_tensor("8", "16"), eight, "cut short"},
      {one_tensor("4", "12"), eight + "yyyy", "begins at byte 4 of the data, 0 is expected"},
      {one_tensor("8", "0"), eight, "ends before it begins"},
      {one_tensor("0", "4"), eight, "has 4 bytes of data, its shape and dtype need 8"},
      {one_tensor("-1", "7"), eight, "negative"},
      {one_tensor("0", "8.0"), eight, "not an integer"},
      {one_tensor("0", "99999999999999999999999"), eight, "not an integer or too large"},
      {one_tensor("18446744073709551608", "18446744073709551615"), eight, "need 8"},
      {one_tensor("0", "8,9"), eight, "not two"},
      {one_tensor("0", "[8]"), eight, "list"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[8]}})", eight, "not two"},
      {R"({"a":{"dtype":"U8","shape":[6],"data_offsets":[0,6]},)"
       R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
       eight, "overlap"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
       R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
       eight, "leave a hole"},
      {R"({"x":{"dtype":"F32",)" + shape_part + R"(},"x":{"dtype":"F32",)" + shape_part + "}}",
       eight, "'x' appears twice"},
      {R"({"x":{"dtype":"F32","dtype":"F32",)" + shape_part + "}}", eight,
       "'dtype' appears twice in 'x'"},
      {R"({"__metadata__":{"a":"1","a":"2"}})", "", "'a' appears twice"},
      {R"({"__metadata__":{"a":1}})", "", "metadata 'a' is a number, not a string"},
      {R"({"__metadata__":"text"})", "", "entry '__metadata__' is a string, not an object"},
      {R"({"x":{)" + shape_part + "}}", eight, "'x' has no dtype"},
      {R"({"x":{"dtype":"F32","data_offsets":[0,8]}})", eight, "'x' has no shape"},
      {R"({"x":{"dtype":"F32","shape":[2]}})", eight, "'x' has no data_offsets"},
      {R"({"x":{"dtype":"F32","order":"C",)" + shape_part + "}}", eight, "unknown entry 'order'"},
      {R"({"x":{"dtype":"F8_E5M2",)" + shape_part + "}}", eight, "has dtype 'F8_E5M2'; known"},
      {R"({"x":{"dtype":7,)" + shape_part + "}}", eight, "holds a number"},
      {R"({"x":{"dtype":null,)" + shape_part + "}}", eight, "holds null"},
      {R"({"x":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})", eight, "holds a number"},
      {R"({"x":{"dtype":"F32","shape":["2"],"data_offsets":[0,8]}})", eight, "a string"},
      {R"({"x":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]}})", eight,
       "more than 8 dimensions"},
      {R"({"x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})", eight,
       "overflows"},
      {R"({"x":{"dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}})", "",
       "overflows"},
      {R"({"x":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8]}})", eight,
       "too large"},
      {R"({"x":[1,2]})", eight, "entry 'x' is a list"},
      {R"({"x":{"dtype":"F32",)" + shape_part + R"(,"extra":{}}})", eight, "unknown entry"},
      {"[]", "", "an object is expected, not a list"},
      {"17", "", "an object is expected, not a number"},
      {R"({"x":)", "", "not valid JSON"},
      {"{} {}", "", "not valid JSON"},
      {"", "", "not valid JSON"},
      {"{\"\xff\":{}}", "", "not valid JSON"},
      {std::string(5000, '['), "", "an object is expected"},
  };
  for (const auto& damaged : kCases) {
    SCOPED_TRACE(damaged.header.substr(0, 100));
    const AlignedText file(safetensors_bytes(damaged.header, damaged.data));
    expect_file_error([&] { parse_safetensors(file.bytes(), "bad.safetensors"); },
                      "bad.safetensors: ", damaged.part);
  }
}

TEST(SafetensorsFile, LyingHeaderLengthsAreRefused) {
  const std::string body = one_tensor("0", "8") + std::string(8, '\0');
  const std::pair<uint64_t, const char*> kLengths[] = {
      {body.size() + 1, "is cut short: header length"},
      {100'000'001, "over the format's limit"},
      {UINT64_MAX, "over the format's limit"},
  };
  for (const auto& [length, part] : kLengths) {
    const AlignedText file(little_endian(length, 8) + body);
    expect_file_error([&] { parse_safetensors(file.bytes(), "bad"); }, "bad: ", part);
  }
}

TEST(SafetensorsFile, NamesInErrorsStayOnOneLine) {
  const AlignedText file(
      safetensors_bytes("{\"a\\n\\u001b[31m\":{\"dtype\":\"F32\"}}", std::string(8, '\0')));
  expect_file_error([&] { parse_safetensors(file.bytes(), "bad"); },
                    "bad: ", "'a\\x0a\\x1b[31m' has no shape");
}

class SafetensorsDisk : public TemporaryFolder {};

TEST_F(SafetensorsDisk, RoundTripKeepsEverything) {
  const float a[] = {1, 2, 3, 4, 5, 6};
  const uint16_t b[] = {0x3f80, 0x7fc1, 0xff80};
  const double c[] = {0.1};
  const uint8_t e[] = {1, 0, 1};
  const TensorMap tensors{
      {"a", TensorView(a, DType::kF32, {2, 3}).transposed(0, 1)},
      {"b \"quoted\" \n \xc3\xa9", TensorView(b, DType::kBF16, {3})},
      {"c", TensorView(c, DType::kF64, std::initializer_list<int64_t>{})},
      {"d", TensorView(nullptr, DType::kF16, {0, 4})},
      {"e", TensorView(e, DType::kBool, {3})},
  };
  const Metadata metadata{{"problem", "x:y"}, {"n", "{\"k\":[1]}"}};
  write_safetensors(path("a.safetensors"), tensors, metadata);
  const TensorFile file = read_safetensors(path("a.safetensors"));
  EXPECT_EQ(file.metadata, metadata);
  ASSERT_EQ(file.tensors.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const TensorView got = file.tensors.at(name);
    EXPECT_EQ(got.dtype, tensor.dtype) << name;
    EXPECT_EQ(got.ndim, tensor.ndim) << name;
    EXPECT_EQ(got.shape, tensor.shape) << name;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(got.data) % static_cast<size_t>(dtype_bytes(got.dtype)),
              0u);
  }
  EXPECT_EQ(element<float>(file.tensors.at("a"), {0, 1}), 4.0f);
  EXPECT_EQ(element<float>(file.tensors.at("a"), {2, 0}), 3.0f);
  EXPECT_EQ(std::memcmp(file.tensors.at("b \"quoted\" \n \xc3\xa9").data, b, sizeof b), 0);
  EXPECT_EQ(element<double>(file.tensors.at("c"), {}), 0.1);
  EXPECT_EQ(std::memcmp(file.tensors.at("e").data, e, sizeof e), 0);
}

TEST_F(SafetensorsDisk, WrittenBytesAreThoseOfTheFormat) {
  const uint8_t small[] = {9};
  const float wide[] = {1};
  write_safetensors(path("a.safetensors"), {{"a", TensorView(small, DType::kU8, {1})},
                                            {"b", TensorView(wide, DType::kF32, {1, 1})}});
  std::string header = R"({"b":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},)"
                       R"("a":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(read(path("a.safetensors")),
            safetensors_bytes(header, little_endian(0x3f800000, 4) + "\x09"));
}

TEST_F(SafetensorsDisk, FailedWritesLeaveNothingBehind) {
  const float value = 1;
  const TensorView tensor(&value, DType::kF32, {1});
  const std::pair<std::string, TensorView> kBad[] = {
      {"\xff", tensor}, {"__metadata__", tensor}, {"x", TensorView(&value, DType::kE5M2, {1})}};
  for (const auto& [name, view] : kBad) {
    EXPECT_THROW(write_safetensors(path("bad.safetensors"), {{name, view}}), Error);
  }
  std::filesystem::create_directory(path("folder"));
  EXPECT_THROW(write_safetensors(path("folder"), {{"x", tensor}}), Error);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path("")),
                          std::filesystem::directory_iterator()),
            1);
}

TEST_F(SafetensorsDisk, OverwritesWhole) {
  const float values[] = {1, 2, 3};
  write_safetensors(path("a.safetensors"), {{"x", TensorView(values, DType::kF32, {3})}});
  write_safetensors(path("a.safetensors"), {{"y", TensorView(values, DType::kF32, {1})}});
  EXPECT_EQ(read_safetensors(path("a.safetensors")).tensors.size(), 1u);
}

}  // namespace
}  // namespace flashtile::cli
