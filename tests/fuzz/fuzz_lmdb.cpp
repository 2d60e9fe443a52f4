// Fuzzes the reader of LMDB pages: accepted entries lie inside the file.

#include "staging/pack/formats/lmdb_tree.h"
#include "tests/fuzz/fuzz_input.h"

using namespace lockstep;
using namespace lockstep::pack;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::run([&] {
    for (const LmdbEntry& entry : read_lmdb(fuzz::bytes_of(data, size), "fuzzed")) {
      fuzz::require(entry.key <= size && entry.key_bytes <= size - entry.key);
      fuzz::require(entry.value <= size && entry.value_bytes <= size - entry.value);
    }
  });
}
