// Fuzzes the parsers of MDS: the text up to the first zero byte is an index.json, the rest is a shard.

#include <algorithm>

#include "staging/pack/formats/mds_index.h"
#include "staging/pack/member_name.h"
#include "tests/fuzz/fuzz_input.h"

using namespace lockstep;
using namespace lockstep::pack;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  const std::size_t zero = std::min(text.find('\0'), text.size());
  const std::string_view shard_bytes = text.substr(std::min(zero + 1, text.size()));
  return fuzz::run([&] {
    for (MdsShard shard : parse_mds_index(text.substr(0, zero), "fuzzed")) {
      fuzz::require(unsafe_member_name(shard.raw.name).empty() && !shard.columns.empty());
      shard.raw.bytes = shard_bytes.size();
      fuzz::run([&] {
        const std::vector<std::uint32_t> begins = parse_mds_table(shard_bytes, shard, "fuzzed shard");
        fuzz::require(begins.size() == shard.samples + 1 && begins.back() == shard_bytes.size());
        for (std::size_t i = 0; i < shard.samples; ++i) {
          const auto sample = shard_bytes.substr(begins[i], begins[i + 1] - begins[i]);
          const auto parts = parse_mds_sample(std::as_bytes(std::span(sample)), sample.size(), shard.columns);
          fuzz::require(parts.empty() || parts.back().offset + parts.back().bytes == sample.size());
        }
      });
    }
  });
}
