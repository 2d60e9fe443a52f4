// Fuzzes the parser of the header of HDF5 files. libhdf5 reads the rest of the file, and has its own fuzzers.

#include "staging/pack/formats/hdf5_file.h"
#include "tests/fuzz/fuzz_input.h"

using namespace lockstep;
using namespace lockstep::pack;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::run([&] {
    const auto read_some = [&](std::uint64_t offset, std::size_t bytes) {
      fuzz::require(offset <= size);
      return std::string(fuzz::text_of(data, size).substr(offset, bytes));
    };
    const std::optional<std::uint64_t> end = check_hdf5(size, read_some, "fuzzed");
    fuzz::require(!end || *end <= size);
  });
}
