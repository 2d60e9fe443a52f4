#include <algorithm>

#include "common/error.h"
#include "staging/pack/formats/extent_reader.h"
#include "staging/pack/reader.h"

namespace lockstep::pack {
namespace {

class JoinedFiles : public JoinedReader {
 public:
  JoinedFiles(std::vector<std::unique_ptr<Reader>> readers, const std::vector<std::string>& names)
      : JoinedReader(with_names(readers, names)), readers_(std::move(readers)), keys_(size()) {}

  std::string_view key(std::size_t i) const override {
    find(i);  // throws Error if there is no sample i
    return keys_[i];
  }
  std::string fingerprint() const override { return fingerprint_of(*this); }

 private:
  static std::vector<NamedReader> with_names(const std::vector<std::unique_ptr<Reader>>& readers,
                                             const std::vector<std::string>& names) {
    std::vector<NamedReader> named;
    for (std::size_t r = 0; r < readers.size(); ++r) named.push_back({names[r], readers[r].get()});
    return named;
  }

  std::vector<std::unique_ptr<Reader>> readers_;
  NumberKeys keys_;
};

}  // namespace

JoinedReader::JoinedReader(std::vector<NamedReader> readers) : readers_(std::move(readers)) {
  if (readers_.empty()) fail_usage("there are no packs to join");
  std::size_t end = 0;
  for (const NamedReader& named : readers_) {
    if (named.reader->token_type() != token_type()) {
      fail("'{}' holds {} where '{}' holds {}: only data of one type can be read together", named.name,
           name_of(named.reader->token_type()), readers_.front().name, name_of(token_type()));
    }
    ends_.push_back(end += named.reader->size());
  }
}

std::pair<const Reader*, std::size_t> JoinedReader::find(std::size_t i) const {
  if (i >= size()) fail("there is no sample {}: the packs have {}", i, size());
  const auto end = std::upper_bound(ends_.begin(), ends_.end(), i);
  const std::size_t begin = end == ends_.begin() ? 0 : *(end - 1);
  return {readers_[static_cast<std::size_t>(end - ends_.begin())].reader, i - begin};
}

std::uint64_t JoinedReader::bytes(std::size_t i) const {
  const auto [reader, number] = find(i);
  return reader->bytes(number);
}

std::uint64_t JoinedReader::tokens(std::size_t i) const {
  const auto [reader, number] = find(i);
  return reader->tokens(number);
}

std::string_view JoinedReader::key(std::size_t i) const {
  const auto [reader, number] = find(i);
  return reader->key(number);
}

void JoinedReader::read(std::size_t i, std::span<std::byte> into) const {
  const auto [reader, number] = find(i);
  reader->read(number, into);
}

std::span<const std::byte> JoinedReader::view(std::size_t i) const {
  const auto [reader, number] = find(i);
  return reader->view(number);
}

std::span<const std::byte> JoinedReader::unchecked_view(std::size_t i) const {
  const auto [reader, number] = find(i);
  return reader->unchecked_view(number);
}

bool JoinedReader::can_view() const {
  return std::ranges::all_of(readers_, [](const NamedReader& named) { return named.reader->can_view(); });
}

bool JoinedReader::safe_to_map() const {
  return std::ranges::all_of(readers_, [](const NamedReader& named) { return named.reader->safe_to_map(); });
}

bool JoinedReader::indexed() const {
  return std::ranges::all_of(readers_, [](const NamedReader& named) { return named.reader->indexed(); });
}

std::vector<Part> JoinedReader::parts(std::size_t i) const {
  const auto [reader, number] = find(i);
  return reader->parts(number);
}

void JoinedReader::read_part(std::size_t i, std::size_t p, std::span<std::byte> into) const {
  const auto [reader, number] = find(i);
  reader->read_part(number, p, into);
}

std::string JoinedReader::fingerprint() const {
  std::string all;
  for (const NamedReader& named : readers_) {
    if (!all.empty()) all += '+';
    all += named.reader->fingerprint();
  }
  return all;
}

std::vector<std::string> JoinedReader::notes() const {
  std::vector<std::string> all;
  for (const NamedReader& named : readers_) {
    for (const std::string& note : named.reader->notes()) all.push_back(named.name + ": " + note);
  }
  return all;
}

void JoinedReader::verify(const ReadProgress& progress) const {
  for (const NamedReader& named : readers_) named.reader->verify(progress);
}

std::unique_ptr<Reader> join(std::vector<std::unique_ptr<Reader>> readers,
                             const std::vector<std::string>& names) {
  if (readers.size() == 1) return std::move(readers.front());
  return std::make_unique<JoinedFiles>(std::move(readers), names);
}

}  // namespace lockstep::pack
