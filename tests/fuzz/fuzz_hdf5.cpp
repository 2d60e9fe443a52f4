// The header of an HDF5 file, which is all of the format that is read here: what lies behind it is read by
// libhdf5, whose own fuzzers are its project's.

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
