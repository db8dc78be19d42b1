// SPDX-License-Identifier: Apache-2.0
#include "files/npy.hpp"
#include "unit/files_helpers.hpp"

namespace flashtile::cli {
namespace {

/// A .npy file made by hand: version 1 has two bytes of length, 2 and 3 have four.
std::string npy_bytes(const std::string& header, const std::string& data, int version = 1) {
  return std::string("\x93NUMPY") + static_cast<char>(version) + '\0' +
         little_endian(header.size(), version == 1 ? 2 : 4) + header + data;
}

std::string header_of(const std::string& descr, const std::string& shape,
                      const std::string& order = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
}

TEST(NpyFile, ReadsBytesWrittenByHand) {
  // 1.0f is 3f800000, -2.5f is c0200000, 0.15625f is 3e200000.
  const std::string data =
      little_endian(0x3f800000, 4) + little_endian(0xc0200000, 4) + little_endian(0x3e200000, 4);
  for (const int version : {1, 2, 3}) {
    const AlignedText file(npy_bytes(header_of("<f4", "(1, 3)"), data, version));
    const TensorFile read = parse_npy(file.bytes(), "a.npy");
    const TensorView tensor = read.tensors.at("");
    EXPECT_EQ(to_string(tensor), "f32 (1, 3)");
    EXPECT_EQ(element<float>(tensor, {0, 0}), 1.0f);
    EXPECT_EQ(element<float>(tensor, {0, 1}), -2.5f);
    EXPECT_EQ(element<float>(tensor, {0, 2}), 0.15625f);
  }
}

TEST(NpyFile, KnowsEveryDtypeThatTheFormatShares) {
  const std::pair<const char*, DType> kTypes[] = {
      {"<f2", DType::kF16}, {"<f4", DType::kF32},  {"<f8", DType::kF64},
      {"<i4", DType::kI32}, {"<i8", DType::kI64},  {"|u1", DType::kU8},
      {"|i1", DType::kI8},  {"|b1", DType::kBool}, {"=f4", DType::kF32}};
  for (const auto& [descr, dtype] : kTypes) {
    const std::string data(static_cast<size_t>(2 * dtype_bytes(dtype)), '\1');
    const AlignedText file(npy_bytes(header_of(descr, "(2,)"), data));
    EXPECT_EQ(parse_npy(file.bytes(), "a.npy").tensors.at("").dtype, dtype) << descr;
  }
}

TEST(NpyFile, FortranOrderBecomesStrides) {
  std::string data;
  for (unsigned i = 0; i < 6; ++i) data += little_endian(10 + i, 4);
  const AlignedText file(npy_bytes(header_of("<i4", "(2, 3)", "True"), data));
  const TensorFile read = parse_npy(file.bytes(), "a.npy");
  const TensorView tensor = read.tensors.at("");
  EXPECT_EQ(tensor.strides[0], 1);
  EXPECT_EQ(tensor.strides[1], 2);
  EXPECT_EQ(element<int32_t>(tensor, {1, 0}), 11);
  EXPECT_EQ(element<int32_t>(tensor, {0, 1}), 12);
  EXPECT_EQ(element<int32_t>(tensor, {1, 2}), 15);
}

TEST(NpyFile, ScalarAndEmptyShapes) {
  const AlignedText scalar(npy_bytes(header_of("<i8", "()"), little_endian(7, 8)));
  const TensorFile read = parse_npy(scalar.bytes(), "a.npy");
  EXPECT_EQ(read.tensors.at("").ndim, 0);
  EXPECT_EQ(element<int64_t>(read.tensors.at(""), {}), 7);
  const AlignedText empty(npy_bytes(header_of("<f4", "(3, 0, 2)"), ""));
  EXPECT_EQ(parse_npy(empty.bytes(), "a.npy").tensors.at("").numel(), 0);
}

TEST(NpyFile, PythonSpellingsAreRead) {
  for (const char* header : {"{\"shape\": (2,), \"descr\": \"<i4\", \"fortran_order\": False}",
                             "{'descr':'<i4','fortran_order':False,'shape':(2,)}      \n",
                             "{'descr': '<i4', 'fortran_order': False, 'shape': (2L,), }\n"}) {
    const AlignedText file(npy_bytes(header, little_endian(5, 4) + little_endian(6, 4)));
    const TensorFile read = parse_npy(file.bytes(), "a.npy");
    EXPECT_EQ(element<int32_t>(read.tensors.at(""), {1}), 6) << header;
  }
}

TEST(NpyFile, UnalignedDataIsCopiedToAlignedStorage) {
  const std::string data = little_endian(0x3ff0000000000000, 8);
  const AlignedText file(npy_bytes(header_of("<f8", "(1,)"), data), 3);
  const TensorFile read = parse_npy(file.bytes(), "a.npy");
  const TensorView tensor = read.tensors.at("");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data) % 8, 0u);
  EXPECT_EQ(element<double>(tensor, {0}), 1.0);
}

TEST(NpyFile, EveryCutIsRefused) {
  const std::string whole =
      npy_bytes(header_of("<f4", "(2,)"), little_endian(0, 4) + little_endian(0, 4));
  for (size_t size = 0; size < whole.size(); ++size) {
    const AlignedText file(whole.substr(0, size));
    EXPECT_THROW(parse_npy(file.bytes(), "cut.npy"), Error) << size;
  }
}

TEST(NpyFile, DamagedFilesGiveOneClearLine) {
  const std::string two = little_endian(1, 8);  // 8 bytes: two f4 or one f8
  const struct {
    std::string bytes, part;
  } kCases[] = {
      {"", "is not a .npy file"},
      {"PK\3\4 a zip archive", "is not a .npy file"},
      {npy_bytes(header_of("<f4", "(2,)"), two, 4), "has .npy version 4"},
      {npy_bytes(header_of("<f4", "(2,)"), two.substr(1)), "has 7 bytes of data"},
      {npy_bytes(header_of("<f4", "(2,)"), two + "x"), "has 9 bytes of data"},
      {npy_bytes(header_of("<f4", "(3,)"), two), "its header names 12"},
      {npy_bytes(header_of(">f4", "(2,)"), two), "has dtype '>f4'"},
      {npy_bytes(header_of("|V2", "(4,)"), two), "has dtype '|V2'"},
      {npy_bytes(header_of("|O", "(1,)"), two), "has dtype '|O'"},
      {npy_bytes("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", two),
       "structured dtype"},
      {npy_bytes(header_of("<f4", "(-2,)"), two), "dimension -2 is negative"},
      {npy_bytes(header_of("<f4", "(2)"), two), "shape is not a tuple"},
      {npy_bytes(header_of("<f4", "2"), two), "'(' is expected"},
      {npy_bytes(header_of("<f4", "(2.0,)"), two), "')' is expected"},
      {npy_bytes(header_of("<f4", "(1,1,1,1,1,1,1,1,2)"), two), "more than 8 dimensions"},
      {npy_bytes(header_of("<f4", "(4294967296, 4294967296)"), two), "overflows"},
      {npy_bytes(header_of("<f4", "(0, 4294967296, 4294967296)"), ""), "overflows"},
      {npy_bytes(header_of("<f4", "(99999999999999999999,)"), two), "too large"},
      {npy_bytes(header_of("<f4", "(2,)", "maybe"), two), "neither True nor False"},
      {npy_bytes("{'descr': '<f4', 'fortran_order': False, }", two), "no entry 'shape'"},
      {npy_bytes("{'descr': '<f4', 'descr': '<f4'}", two), "'descr' appears twice"},
      {npy_bytes("{'descr': '<f4', 'size': 3}", two), "unknown entry 'size'"},
      {npy_bytes("{'descr': '<f4", two), "string does not end"},
      {npy_bytes("{'descr'}", two), "':' is expected"},
      {npy_bytes("", two), "'{' is expected"},
      {npy_bytes(header_of("<f4", "(2,)") + "import os", two), "text follows"},
      {std::string("\x93NUMPY\1\0\xff\xff{}", 12), "header length 65535, but 2 bytes follow"},
      {std::string("\x93NUMPY\2\0\xff\xff\xff\xff{}", 14), "header length 4294967295"},
      {std::string("\x93NUMPY\2\0\xff\xff", 10), "cut short inside its header"},
  };
  for (const auto& damaged : kCases) {
    SCOPED_TRACE(damaged.part);
    const AlignedText file(damaged.bytes);
    expect_file_error([&] { parse_npy(file.bytes(), "bad.npy"); }, "bad.npy: ", damaged.part);
  }
}

class NpyDisk : public TemporaryFolder {};

TEST_F(NpyDisk, WrittenBytesAreThoseOfTheFormat) {
  const int32_t values[] = {1, -1, 258};
  write_npy(path("a.npy"), TensorView(values, DType::kI32, {3}));
  const std::string bytes = read(path("a.npy"));
  std::string header = "{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }";
  header.append(128 - 10 - 1 - header.size(), ' ');
  header += '\n';
  const std::string data =
      little_endian(1, 4) + little_endian(0xffffffff, 4) + "\x02\x01" + std::string(2, '\0');
  EXPECT_EQ(bytes, std::string("\x93NUMPY\x01\0", 8) + little_endian(118, 2) + header + data);
}

TEST_F(NpyDisk, StridedTensorsAreWrittenInOrder) {
  const float values[] = {0, 1, 2, 3, 4, 5};
  const TensorView transposed = TensorView(values, DType::kF32, {2, 3}).transposed(0, 1);
  write_npy(path("t.npy"), transposed);
  const TensorFile file = read_npy(path("t.npy"));
  const TensorView tensor = file.tensors.at("");
  EXPECT_EQ(to_string(tensor), "f32 (3, 2)");
  EXPECT_EQ(element<float>(tensor, {0, 1}), 3.0f);
  EXPECT_EQ(element<float>(tensor, {2, 0}), 2.0f);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data) % 64, 0u);
}

TEST_F(NpyDisk, Bf16IsRefusedAndNothingIsWritten) {
  const uint16_t values[] = {0x3f80};
  expect_file_error([&] { write_npy(path("b.npy"), TensorView(values, DType::kBF16, {1})); },
                    path("b.npy"), "cannot hold bf16");
  EXPECT_FALSE(std::filesystem::exists(path("b.npy")));
}

TEST_F(NpyDisk, PathsThatAreNoFileAreRefused) {
  expect_file_error([&] { read_npy(path("none.npy")); }, path("none.npy"), "cannot be opened");
  expect_file_error([&] { read_npy(path("")); }, path(""), "not a regular file");
  expect_file_error([&] { read_npy(write("empty.npy", "")); }, path("empty.npy"), "is empty");
  expect_file_error([&] { read_tensor_file(path("a.txt")); }, path("a.txt"), "neither a .npy");
  const float value = 1;
  expect_file_error(
      [&] { write_npy(path("no/such/folder.npy"), TensorView(&value, DType::kF32, {1})); },
      path("no/such/folder.npy"), "cannot be created");
}

}  // namespace
}  // namespace flashtile::cli
