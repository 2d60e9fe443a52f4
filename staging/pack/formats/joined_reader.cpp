// Several files of one format as one list of samples.

#include <algorithm>

#include "common/error.h"
#include "staging/pack/formats/extent_reader.h"

namespace lockstep::pack {
namespace {

class JoinedReader : public Reader {
 public:
  explicit JoinedReader(std::vector<std::unique_ptr<Reader>> readers) : readers_(std::move(readers)) {
    ends_.reserve(readers_.size());
    std::size_t end = 0;
    for (const std::unique_ptr<Reader>& reader : readers_) ends_.push_back(end += reader->size());
    keys_ = std::make_unique<NumberKeys>(end);
    can_view_ =
        std::all_of(readers_.begin(), readers_.end(), [](const auto& reader) { return reader->can_view(); });
  }

  std::size_t size() const override { return ends_.back(); }
  std::uint64_t bytes(std::size_t i) const override {
    const Place at = place(i);
    return at.reader->bytes(at.i);
  }
  std::uint64_t tokens(std::size_t i) const override {
    const Place at = place(i);
    return at.reader->tokens(at.i);
  }
  int token_bytes() const override { return readers_.front()->token_bytes(); }
  TokenType token_type() const override { return readers_.front()->token_type(); }
  std::string_view key(std::size_t i) const override {
    place(i);
    return (*keys_)[i];
  }
  void read(std::size_t i, std::span<std::byte> into) const override {
    const Place at = place(i);
    at.reader->read(at.i, into);
  }
  std::span<const std::byte> view(std::size_t i) const override {
    const Place at = place(i);
    return at.reader->view(at.i);
  }
  std::span<const std::byte> unchecked_view(std::size_t i) const override {
    const Place at = place(i);
    return at.reader->unchecked_view(at.i);
  }
  bool can_view() const override { return can_view_; }
  bool indexed() const override {
    return std::all_of(readers_.begin(), readers_.end(),
                       [](const auto& reader) { return reader->indexed(); });
  }
  std::vector<Part> parts(std::size_t i) const override {
    const Place at = place(i);
    return at.reader->parts(at.i);
  }
  void read_part(std::size_t i, std::size_t p, std::span<std::byte> into) const override {
    const Place at = place(i);
    at.reader->read_part(at.i, p, into);
  }
  std::string fingerprint() const override { return fingerprint_of(*this); }
  void verify() const override {
    for (const std::unique_ptr<Reader>& reader : readers_) reader->verify();
  }

 private:
  struct Place {
    const Reader* reader;
    std::size_t i;
  };

  Place place(std::size_t i) const {
    if (i >= size()) fail("sample {} was asked for, there are {} in {} files", i, size(), readers_.size());
    const auto found = std::upper_bound(ends_.begin(), ends_.end(), i);
    const std::size_t begin = found == ends_.begin() ? 0 : *(found - 1);
    return {readers_[static_cast<std::size_t>(found - ends_.begin())].get(), i - begin};
  }

  std::vector<std::unique_ptr<Reader>> readers_;
  std::vector<std::size_t> ends_;
  std::unique_ptr<NumberKeys> keys_;
  bool can_view_ = true;
};

}  // namespace

std::unique_ptr<Reader> join(std::vector<std::unique_ptr<Reader>> readers,
                             const std::vector<std::string>& names) {
  if (readers.empty()) fail("there are no files to read");
  if (readers.size() == 1) return std::move(readers.front());
  for (std::size_t r = 1; r < readers.size(); ++r) {
    if (readers[r]->token_type() != readers[0]->token_type())
      fail("{} holds samples of type {}, {} of type {}: name one of them", names[0],
           name_of(readers[0]->token_type()), names[r], name_of(readers[r]->token_type()));
  }
  return std::make_unique<JoinedReader>(std::move(readers));
}

}  // namespace lockstep::pack
