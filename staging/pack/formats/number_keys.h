// Keys for samples without names: their numbers, with as many digits as the last number, so that they sort.
//
// Threads: safe from any.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string_view>

namespace lockstep::pack {

/// Makes the text in blocks when it is first needed, and keeps it.
class NumberKeys {
 public:
  explicit NumberKeys(std::size_t count);
  NumberKeys(const NumberKeys&) = delete;
  NumberKeys& operator=(const NumberKeys&) = delete;
  ~NumberKeys();

  /// Number i, less than the count.
  std::string_view operator[](std::size_t i) const;

 private:
  std::size_t digits_;
  std::size_t blocks_;
  std::unique_ptr<std::atomic<char*>[]> text_;
};

}  // namespace lockstep::pack
