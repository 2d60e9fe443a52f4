#include "staging/pack/formats/number_keys.h"

#include <fmt/format.h>

namespace lockstep::pack {
namespace {

constexpr std::size_t kPerBlock = 1024;

}  // namespace

NumberKeys::NumberKeys(std::size_t count)
    : digits_(fmt::formatted_size("{}", count == 0 ? 0 : count - 1)),
      blocks_((count + kPerBlock - 1) / kPerBlock),
      text_(std::make_unique<std::atomic<char*>[]>(blocks_)) {
}

NumberKeys::~NumberKeys() {
  for (std::size_t b = 0; b < blocks_; ++b) delete[] text_[b].load(std::memory_order_relaxed);
}

std::string_view NumberKeys::operator[](std::size_t i) const {
  std::atomic<char*>& block = text_[i / kPerBlock];
  char* text = block.load(std::memory_order_acquire);
  if (text == nullptr) {
    auto made = std::make_unique<char[]>(kPerBlock * digits_);
    const std::size_t first = i - i % kPerBlock;
    for (std::size_t n = 0; n < kPerBlock; ++n)
      fmt::format_to_n(made.get() + n * digits_, digits_, "{:0{}}", first + n, digits_);
    // Several threads may have made the block; the first one is kept.
    if (block.compare_exchange_strong(text, made.get(), std::memory_order_acq_rel)) text = made.release();
  }
  return {text + i % kPerBlock * digits_, digits_};
}

}  // namespace lockstep::pack
