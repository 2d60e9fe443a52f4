#include "tests/bench/length_lists.h"

#include <algorithm>
#include <cmath>

#include "common/error.h"
#include "runtime/data/plan/order/random.h"
#include "tests/data/lengths/read_lengths.h"

namespace lockstep::bench {

std::string lengths_folder() {
  return LOCKSTEP_BENCH_DATA "/lengths/";
}

List azure_conv() {
  List list{"azure_conv", {read_lengths(lengths_folder() + "azure_llm_conv_2023.txt"), "azure_conv"}};
  if (list.lengths.tokens.empty()) fail("cannot read the lengths in {}", lengths_folder());
  return list;
}

List heavy_tail() {
  constexpr std::size_t kCount = 12'000;
  List list{"heavy_tail", {}};
  data::Random random(1, 0, 0);
  while (list.lengths.tokens.size() < kCount) {
    const double u = static_cast<double>(random.next() >> 11U) * 0x1p-53;
    const double length = 4200 / std::pow(1 - u, 1 / 1.35);
    list.lengths.tokens.push_back(static_cast<std::uint32_t>(std::clamp(length, 900.0, 126'000.0)));
  }
  list.lengths.fingerprint = data::fingerprint_of(list.lengths.tokens);
  return list;
}

List shortened(List list, std::uint32_t divisor, std::uint64_t cap) {
  for (std::uint32_t& length : list.lengths.tokens) {
    length = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(length / divisor, 1, cap));
  }
  list.lengths.fingerprint = data::fingerprint_of(list.lengths.tokens);
  return list;
}

}  // namespace lockstep::bench
