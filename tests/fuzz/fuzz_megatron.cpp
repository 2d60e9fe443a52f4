// Fuzzes the parser of Megatron's .idx: the sequences of an accepted index follow each other and fill the
// .bin.

#include "staging/pack/formats/megatron_index.h"
#include "tests/fuzz/fuzz_input.h"

using namespace lockstep;
using namespace lockstep::pack;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::run([&] {
    const MegatronIndex index = MegatronIndex::parse(fuzz::bytes_of(data, size), "fuzzed");
    std::uint64_t end = 0;
    for (std::size_t i = 0; i < index.sequences(); ++i) {
      fuzz::require(index.offset(i) == end);
      end += index.length(i) * static_cast<unsigned>(bytes_of(index.type()));
    }
    fuzz::require(end == index.data_bytes());
    for (std::size_t d = 0; d < index.document_entries(); ++d)
      fuzz::require(index.document(d) <= index.sequences());
  });
}
