// Tensors come back from a file as they were, and a file that is not one of ours is refused.
#include "runtime/train/checkpoint/tensor_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "common/error.h"

namespace lockstep::checkpoint {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string file_of(const std::vector<NamedTensor>& tensors, FileBuffer& buffer) {
  TensorCopies copies;
  copies.add(tensors, {{"key", "value"}}, buffer);
  copies.run();
  const auto bytes = buffer.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string file_of(const std::vector<NamedTensor>& tensors) {
  FileBuffer buffer;
  return file_of(tensors, buffer);
}

bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  const auto left = a.contiguous();
  const auto right = b.contiguous();
  return left.sizes() == right.sizes() && left.scalar_type() == right.scalar_type() &&
         (left.numel() == 0 || std::memcmp(left.data_ptr(), right.data_ptr(), left.nbytes()) == 0);
}

TEST(TensorFile, KeepsAllTypesShapesAndLayouts) {
  torch::manual_seed(1);
  std::vector<NamedTensor> tensors;
  for (const auto type : {torch::kFloat64, torch::kFloat32, torch::kFloat16, torch::kBFloat16, torch::kInt64,
                          torch::kInt32, torch::kInt16, torch::kInt8, torch::kUInt8, torch::kBool,
                          torch::kComplexFloat, torch::kComplexDouble}) {
    // Odd numbers of elements, so that a wrong order would misalign what follows.
    tensors.push_back({std::string(c10::toString(type)), (torch::randn({3, 5}) * 50).to(type)});
  }
  tensors.push_back({"number", torch::tensor(0.1)});
  tensors.push_back({"empty", torch::empty({0, 3})});
  tensors.push_back({"transposed", torch::randn({4, 7}).t()});
  tensors.push_back(
      {"channels_last", torch::randn({2, 3, 4, 5}).contiguous(torch::MemoryFormat::ChannelsLast)});
  tensors.push_back({"part", torch::randn({9, 9}).slice(1, 2, 5)});
  tensors.push_back({"large", torch::randn({1'000'003})});
  tensors.push_back({"not a number", torch::full({2}, std::numeric_limits<double>::quiet_NaN())});
  const std::string bytes = file_of(tensors);
  const TensorFile read = read_tensor_file(std::as_bytes(std::span(bytes)));
  EXPECT_EQ(read.metadata.at("key"), "value");
  ASSERT_EQ(read.tensors.size(), tensors.size());
  for (const NamedTensor& tensor : tensors) {
    const auto found = std::find_if(read.tensors.begin(), read.tensors.end(),
                                    [&](const NamedTensor& other) { return other.name == tensor.name; });
    ASSERT_NE(found, read.tensors.end()) << tensor.name;
    EXPECT_TRUE(same_bits(found->tensor, tensor.tensor)) << tensor.name;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(found->tensor.data_ptr()) %
                  static_cast<std::uintptr_t>(tensor.tensor.element_size()),
              0U)
        << tensor.name;
  }
}

TEST(TensorFile, UsesItsMemoryAgain) {
  FileBuffer buffer;
  file_of({{"a", torch::ones({1000})}}, buffer);
  const auto* const first = buffer.bytes().data();
  const std::string smaller = file_of({{"a", torch::full({900}, 2.0)}}, buffer);
  EXPECT_EQ(buffer.bytes().data(), first);
  EXPECT_TRUE(same_bits(read_tensor_file(std::as_bytes(std::span(smaller))).tensors.at(0).tensor,
                        torch::full({900}, 2.0)));
}

// The bytes as the format's description has them.
TEST(TensorFile, IsASafetensorsFile) {
  const std::string bytes = file_of({{"a", torch::tensor({1, 2}, torch::kUInt8)}});
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  ASSERT_EQ(bytes.size(), 8 + length + 2);
  EXPECT_THAT(bytes.substr(8, length),
              HasSubstr(R"({"__metadata__":{"key":"value"},"a":{"data_offsets":[0,2],)"
                        R"("dtype":"U8","shape":[2]}})"));
  EXPECT_EQ(bytes.substr(8 + length), "\x01\x02");
}

TEST(TensorFile, ThatIsDamagedIsRefused) {
  const std::string bytes = file_of({{"abc", torch::ones({4, 4})}});
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = bytes;
    return changed.replace(changed.find(from), from.size(), to);
  };
  for (const std::string& wrong :
       {std::string("short"), std::string(8, '\xff') + "{}", with("[0,64]", "[0,65]"),
        with("[0,64]", "[9,64]"), with("[4,4]", "[4,5]"), with("[4,4]", "[4,-4]"), with("\"F32\"", "\"F33\""),
        with("{\"__", "[\"__"), bytes.substr(0, bytes.size() - 1)})
    EXPECT_THROW(read_tensor_file(std::as_bytes(std::span(wrong))), Error);
}

TEST(TensorFile, CannotHoldSparseTensors) {
  EXPECT_THAT(
      [] {
        file_of({{"embedding", torch::eye(3).to_sparse()}});
      },
      ThrowsMessage<UsageError>(HasSubstr("'embedding', a sparse tensor")));
}

}  // namespace
}  // namespace lockstep::checkpoint
