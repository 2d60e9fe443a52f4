// Fuzzes the parser of index.lockstep: no accessor of an accepted index leaves its tables and shards.

#include <cstring>
#include <vector>

#include "staging/pack/index.h"
#include "tests/fuzz/fuzz_input.h"

using namespace lockstep;
using namespace lockstep::pack;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < sizeof(Digest)) return 0;
  std::vector<std::uint64_t> aligned((size + 7) / 8);
  std::memcpy(aligned.data(), data, size);
  const auto bytes = std::as_writable_bytes(std::span(aligned)).first(size);
  // The checksum detects damage but not malice. It is corrected here, since it would also stop the fuzzer.
  const Digest digest = digest_of(bytes.first(size - sizeof(Digest)));
  std::memcpy(bytes.last(sizeof(Digest)).data(), digest.data(), sizeof(Digest));
  return fuzz::run([&] {
    const Index index = Index::parse(bytes, "fuzzed");
    std::vector<std::size_t> shards;
    for (std::size_t s = 0; s < index.shards(); ++s) {
      fuzz::require(index.find_shard(index.shard_name(s)) <= s);
      shards.push_back(s);
      for (std::size_t i = index.first_sample(s); i < index.first_sample(s + 1); ++i) {
        fuzz::require(!index.key(i).empty());
        for (std::size_t p = index.first_part(i); p < index.first_part(i + 1); ++p) {
          const layout::PartRecord& part = index.part(p);
          fuzz::require(part.offset <= index.shard(s).size && part.size <= index.shard(s).size - part.offset);
          fuzz::require(index.kind(part).size() <= size);
        }
      }
    }
    fuzz::require(index.fingerprint(0, index.samples()).size() == 32);
    fuzz::require(!index.subset(shards).empty());
  });
}
