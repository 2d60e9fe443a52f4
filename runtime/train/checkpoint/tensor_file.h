// Named tensors in a file of the format safetensors (https://github.com/huggingface/safetensors), which
// Python reads with `safetensors.torch.load_file`: the length of the header (8 bytes, little endian), the
// header (JSON), and the tensors' elements, end to end.
//
// Threads: the training thread; several may read at once.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/train/checkpoint/items.h"

namespace lockstep::checkpoint {

/// Memory for a file. It is kept for the next checkpoint, because the first use of memory is slow.
class FileBuffer {
 public:
  FileBuffer() = default;
  FileBuffer(FileBuffer&& other) noexcept;
  FileBuffer& operator=(FileBuffer&&) = delete;
  ~FileBuffer();

  /// Sets the size; the content is undefined.
  void resize(std::size_t bytes);
  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

using Metadata = std::map<std::string, std::string>;

/// Copies tensors into buffers. First all files are added, then run() copies with all of LibTorch's threads.
class TensorCopies {
 public:
  /// Puts a file with these tensors into the buffer. The elements are copied by run(). The tensors may be on
  /// any device. Throws UsageError naming a tensor whose type or layout has no place in the format.
  void add(const std::vector<NamedTensor>& tensors, const Metadata& metadata, FileBuffer& buffer);
  void run();

 private:
  struct Copy {
    torch::Tensor from;
    std::byte* to;
  };
  std::vector<Copy> copies_;
};

struct TensorFile {
  std::vector<NamedTensor> tensors;    ///< views of the bytes
  std::vector<std::uint64_t> offsets;  ///< of the tensors' elements in the file
  Metadata metadata;
};

/// `bytes` must outlive the tensors. Throws Error if they are not such a file.
TensorFile read_tensor_file(std::span<const std::byte> bytes);

/// The number of bytes before the first element, from the first 8 bytes of a file.
std::uint64_t header_bytes(std::span<const std::byte, 8> begin);
/// From the header of a file of `file_bytes`: the tensors have no memory (the device meta).
TensorFile read_tensor_header(std::span<const std::byte> header, std::uint64_t file_bytes);

}  // namespace lockstep::checkpoint
