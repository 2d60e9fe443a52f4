#include "runtime/train/checkpoint/tensor_file.h"

#include <ATen/Parallel.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "common/error.h"

namespace lockstep::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little endian");

constexpr std::size_t kAlignment = 64;  // of the first element
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr const char* kMetadata = "__metadata__";

const std::vector<std::pair<const char*, torch::ScalarType>>& types() {
  static const std::vector<std::pair<const char*, torch::ScalarType>> all = {
      {"F64", torch::kFloat64},   {"F32", torch::kFloat32},      {"F16", torch::kFloat16},
      {"BF16", torch::kBFloat16}, {"I64", torch::kInt64},        {"I32", torch::kInt32},
      {"I16", torch::kInt16},     {"I8", torch::kInt8},          {"U8", torch::kUInt8},
      {"BOOL", torch::kBool},     {"C64", torch::kComplexFloat}, {"C128", torch::kComplexDouble}};
  return all;
}

const char* name_of(const NamedTensor& tensor) {
  if (tensor.tensor.layout() == torch::kStrided) {
    for (const auto& [name, type] : types()) {
      if (type == tensor.tensor.scalar_type()) return name;
    }
  }
  fail_usage("a checkpoint cannot hold '{}', a {} tensor of type {}", tensor.name,
             tensor.tensor.layout() == torch::kStrided ? "dense" : "sparse",
             c10::toString(tensor.tensor.scalar_type()));
}

torch::ScalarType type_of(const std::string& name) {
  for (const auto& [known, type] : types()) {
    if (known == name) return type;
  }
  fail("it has a tensor of the unknown type {}", name);
}

bool is_plain(const torch::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

}  // namespace

FileBuffer::FileBuffer(FileBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      capacity_(std::exchange(other.capacity_, 0)) {
}

FileBuffer::~FileBuffer() {
  if (data_ != nullptr) ::munmap(data_, capacity_);
}

void FileBuffer::resize(std::size_t bytes) {
  if (bytes > capacity_) {
    if (data_ != nullptr) ::munmap(data_, capacity_);
    data_ = nullptr;
    size_ = capacity_ = 0;
    const std::size_t capacity = (bytes + bytes / 8 + kHugePage) / kHugePage * kHugePage;
    void* const memory =
        ::mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    ::madvise(memory, capacity, MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(memory);
    capacity_ = capacity;
  }
  size_ = bytes;
}

void TensorCopies::add(const std::vector<NamedTensor>& tensors, const Metadata& metadata,
                       FileBuffer& buffer) {
  // The format has no space between tensors. In this order each is aligned to its element size.
  std::vector<const NamedTensor*> ordered;
  std::set<std::string> names;
  for (const NamedTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second)
      fail_usage("a checkpoint cannot hold two tensors '{}'", tensor.name);
    ordered.push_back(&tensor);
  }
  std::stable_sort(ordered.begin(), ordered.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return a->tensor.element_size() > b->tensor.element_size();
  });
  nlohmann::json header = nlohmann::json::object();
  header[kMetadata] = metadata;
  std::size_t end = 0;
  for (const NamedTensor* tensor : ordered) {
    const std::size_t begin = end;
    end += tensor->tensor.numel() * tensor->tensor.element_size();
    header[tensor->name] = {
        {"dtype", name_of(*tensor)}, {"shape", tensor->tensor.sizes().vec()}, {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + sizeof(std::uint64_t) + kAlignment - 1) / kAlignment * kAlignment -
                  sizeof(std::uint64_t),
              ' ');
  const std::uint64_t length = text.size();
  buffer.resize(sizeof length + text.size() + end);
  std::byte* at = buffer.bytes().data();
  std::memcpy(at, &length, sizeof length);
  std::memcpy(at + sizeof length, text.data(), text.size());
  at += sizeof length + text.size();
  for (const NamedTensor* tensor : ordered) {
    copies_.push_back({tensor->tensor.detach(), at});
    at += tensor->tensor.numel() * tensor->tensor.element_size();
  }
}

void TensorCopies::run() {
  const torch::NoGradGuard no_grad;
  std::vector<Copy> plain;
  std::vector<std::int64_t> ends = {0};  // of the copies, end to end
  for (const Copy& copy : std::exchange(copies_, {})) {
    if (is_plain(copy.from)) {
      plain.push_back(copy);
      ends.push_back(ends.back() + static_cast<std::int64_t>(copy.from.nbytes()));
    } else {
      torch::from_blob(copy.to, copy.from.sizes(), copy.from.options().device(torch::kCPU)).copy_(copy.from);
    }
  }
  // Each thread copies an equal number of bytes.
  at::parallel_for(0, ends.back(), std::int64_t{1} << 18, [&](std::int64_t begin, std::int64_t end) {
    auto i = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin() - 1);
    for (; i < plain.size() && ends[i] < end; ++i) {
      const std::int64_t from = std::max(begin, ends[i]) - ends[i];
      const std::int64_t to = std::min(end, ends[i + 1]) - ends[i];
      std::memcpy(plain[i].to + from, static_cast<const std::byte*>(plain[i].from.data_ptr()) + from,
                  static_cast<std::size_t>(to - from));
    }
  });
}

std::uint64_t header_bytes(std::span<const std::byte, 8> begin) {
  std::uint64_t length = 0;
  std::memcpy(&length, begin.data(), sizeof length);
  return length > UINT64_MAX / 2 ? length : length + sizeof length;
}

namespace {

// `bytes`: the whole file, or its header alone.
TensorFile parse(std::span<const std::byte> bytes, std::uint64_t file_bytes, bool has_elements) {
  if (bytes.size() < 8) fail("it is too short");
  const std::uint64_t begin = header_bytes(bytes.first<8>());
  if (begin > bytes.size()) fail("its header is too long");
  TensorFile file;
  try {
    const auto* const text = reinterpret_cast<const char*>(bytes.data());
    const auto header = nlohmann::json::parse(text + 8, text + begin);
    for (const auto& [name, entry] : header.items()) {
      if (name == kMetadata) {
        file.metadata = entry.get<Metadata>();
        continue;
      }
      const torch::ScalarType type = type_of(entry.at("dtype"));
      const auto shape = entry.at("shape").get<std::vector<std::int64_t>>();
      const std::uint64_t from = entry.at("data_offsets").at(0);
      const std::uint64_t to = entry.at("data_offsets").at(1);
      std::uint64_t size = c10::elementSize(type);
      for (const std::int64_t side : shape) {
        if (side < 0 || (side > 0 && size > file_bytes / static_cast<std::uint64_t>(side)))
          fail("the shape of '{}' is too large", name);
        size *= static_cast<std::uint64_t>(side);
      }
      if (from > to || to > file_bytes - begin || to - from != size) fail("the place of '{}' is wrong", name);
      file.offsets.push_back(begin + from);
      // LibTorch has no tensors of const memory; nobody writes to these.
      file.tensors.push_back(
          {name, has_elements
                     ? torch::from_blob(const_cast<char*>(text) + begin + from, shape,
                                        torch::TensorOptions().dtype(type))
                     : torch::empty(shape, torch::TensorOptions().dtype(type).device(torch::kMeta))});
    }
  } catch (const nlohmann::json::exception&) {
    fail("its header is damaged");
  }
  return file;
}

}  // namespace

TensorFile read_tensor_file(std::span<const std::byte> bytes) {
  return parse(bytes, bytes.size(), true);
}

TensorFile read_tensor_header(std::span<const std::byte> header, std::uint64_t file_bytes) {
  return parse(header, file_bytes, false);
}

}  // namespace lockstep::checkpoint
