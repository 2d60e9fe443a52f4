// Reads the sequences of a Megatron-Core .bin, which its .idx lists.

#include <fmt/format.h>

#include "staging/pack/formats/extent_reader.h"
#include "staging/pack/formats/format_readers.h"
#include "staging/pack/formats/megatron_index.h"

namespace lockstep::pack {
namespace {

class MegatronReader : public ExtentReader {
 public:
  MegatronReader(const std::filesystem::path& folder, const std::string& index_name, MegatronIndex index)
      : ExtentReader(folder, megatron_data(index_name).string(), index.sequences(), index.type()),
        index_(std::move(index)),
        token_(static_cast<std::uint64_t>(bytes_of(index_.type()))) {
    check_megatron_data(index_);
  }

  /// The format has no digests: this checks the size, and that all bytes can be read.
  void verify(const ReadProgress& progress) const override {
    check_megatron_data(index_);
    read_whole_file(progress);
  }

 protected:
  Extent extent(std::size_t i) const override { return {index_.offset(i), index_.length(i) * token_}; }

 private:
  MegatronIndex index_;
  std::uint64_t token_;
};

}  // namespace

std::unique_ptr<Reader> open_megatron(const std::filesystem::path& folder, const std::string& index) {
  return std::make_unique<MegatronReader>(folder, index, MegatronIndex::load(folder / index));
}

}  // namespace lockstep::pack
