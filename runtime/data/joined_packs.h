// Presents several packs as one: the samples of the first pack, then those of the second, and so on. It is
// for mixtures (plan/mixture/mixture.h) and for data in several packs.
//
//   const auto web = pack::open("web"), books = pack::open("books");
//   const JoinedPacks packs({{"web", web.get()}, {"books", books.get()}});
//
// Threads: as pack::Reader.
#pragma once

#include <vector>

#include "runtime/data/plan/mixture/mixture.h"
#include "staging/pack/joined_reader.h"

namespace lockstep::data {

using NamedPack = pack::NamedReader;

class JoinedPacks final : public pack::JoinedReader {
 public:
  using JoinedReader::JoinedReader;

  /// The value for Mixture::parts.
  std::vector<MixturePart> parts_of_mixture() const {
    std::vector<MixturePart> parts;
    for (const NamedPack& pack : readers()) parts.push_back({pack.name, pack.reader->size()});
    return parts;
  }
};

}  // namespace lockstep::data
