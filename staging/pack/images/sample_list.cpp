#include "staging/pack/images/sample_list.h"

#include "common/error.h"
#include "common/files.h"
#include "staging/pack/format.h"
#include "staging/pack/member_name.h"
#include "staging/pack/reader.h"
#include "staging/pack/write/file_list.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

class PackedSamples : public SampleList {
 public:
  explicit PackedSamples(std::unique_ptr<Reader> reader) : reader_(std::move(reader)) {}

  std::size_t size() const override { return reader_->size(); }
  std::string key(std::size_t sample) const override { return std::string(reader_->key(sample)); }
  std::vector<SamplePart> read(std::size_t sample) const override {
    std::vector<SamplePart> parts;
    for (const Part& part : reader_->parts(sample)) {
      SamplePart read{.kind = part.kind, .bytes = std::vector<std::byte>(part.bytes)};
      reader_->read_part(sample, parts.size(), read.bytes);
      parts.push_back(std::move(read));
    }
    return parts;
  }

 private:
  std::unique_ptr<Reader> reader_;
};

class FolderSamples : public SampleList {
 public:
  FolderSamples(fs::path folder, const std::vector<std::string>& filters)
      : folder_(std::move(folder)), files_(files_below(folder_, filters)) {
    for (std::size_t f = 0; f < files_.size(); ++f) {
      if (f == 0 || split_member_name(files_[f]).key != split_member_name(files_[f - 1]).key)
        begins_.push_back(f);
    }
  }

  std::size_t size() const override { return begins_.size(); }
  std::string key(std::size_t sample) const override {
    return std::string(split_member_name(files_[begins_[sample]]).key);
  }
  std::vector<SamplePart> read(std::size_t sample) const override {
    const std::size_t end = sample + 1 < size() ? begins_[sample + 1] : files_.size();
    std::vector<SamplePart> parts;
    for (std::size_t f = begins_[sample]; f < end; ++f) {
      const std::string content = read_text_file(folder_ / files_[f]);
      const auto bytes = std::as_bytes(std::span(content));
      parts.push_back(
          {.kind = std::string(split_member_name(files_[f]).kind), .bytes = {bytes.begin(), bytes.end()}});
    }
    return parts;
  }

 private:
  fs::path folder_;
  std::vector<std::string> files_;   // those of one sample are neighbours
  std::vector<std::size_t> begins_;  // of each sample
};

}  // namespace

std::unique_ptr<SampleList> list_samples(const fs::path& source, const std::vector<std::string>& filters) {
  if (fs::is_directory(source) && contents_of(source).format == Format::plain)
    return std::make_unique<FolderSamples>(source, filters);
  if (!filters.empty()) fail_usage("--filter selects files of a folder, and {} is packed", source.string());
  return std::make_unique<PackedSamples>(open(source));
}

}  // namespace lockstep::pack
