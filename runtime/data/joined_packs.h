// Several packs as one: the samples of the first, then those of the second, and so on. What a mixture
// (plan/mixture.h) is read from, and data that lie in several packs.
//
//   const auto web = pack::open("web"), books = pack::open("books");
//   const JoinedPacks packs({{"web", web.get()}, {"books", books.get()}});
//
// Threads: as pack::Reader.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/data/plan/mixture/mixture.h"
#include "staging/pack/reader.h"

namespace lockstep::data {

struct NamedPack {
  std::string name;  ///< stands in errors
  const pack::Reader* reader = nullptr;
};

class JoinedPacks final : public pack::Reader {
 public:
  /// The packs must outlive this. Throws UsageError naming a pack whose tokens are of another type than those
  /// of the first.
  explicit JoinedPacks(std::vector<NamedPack> packs);

  /// For Mixture::parts.
  std::vector<MixturePart> parts_of_mixture() const;

  std::size_t size() const override { return begins_.back(); }
  std::uint64_t bytes(std::size_t i) const override;
  std::uint64_t tokens(std::size_t i) const override;
  int token_bytes() const override { return packs_.front().reader->token_bytes(); }
  pack::TokenType token_type() const override { return packs_.front().reader->token_type(); }
  std::string_view key(std::size_t i) const override;
  void read(std::size_t i, std::span<std::byte> into) const override;
  std::span<const std::byte> view(std::size_t i) const override;
  std::span<const std::byte> unchecked_view(std::size_t i) const override;
  bool can_view() const override;
  std::vector<pack::Part> parts(std::size_t i) const override;
  void read_part(std::size_t i, std::size_t p, std::span<std::byte> into) const override;
  std::string fingerprint() const override;
  void verify() const override;

 private:
  // The pack that holds sample i, and its number there.
  std::pair<const pack::Reader*, std::size_t> find(std::size_t i) const;

  std::vector<NamedPack> packs_;
  std::vector<std::size_t> begins_;  // of each pack, and the end
};

}  // namespace lockstep::data
