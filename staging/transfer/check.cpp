#include "staging/transfer/check.h"

#include <fcntl.h>

#include <algorithm>
#include <random>

#include "common/files.h"
#include "staging/pack/index.h"
#include "staging/pack/locate.h"
#include "staging/pack/shard_check.h"
#include "staging/transfer/parallel.h"

namespace lockstep::transfer {
namespace {

constexpr int kSamples = 16;
constexpr std::uint64_t kLargestSample = std::uint64_t{1} << 20;

/// A few samples, others each time: bounded work that finds a damaged disk before long.
void check_some_samples(const std::filesystem::path& folder, const pack::Index& index) {
  std::minstd_rand random(std::random_device{}());
  std::uniform_int_distribution<std::size_t> any(0, index.samples() - 1);
  for (int n = 0; n < kSamples; ++n) {
    const std::size_t sample = any(random);
    const std::size_t p = index.first_part(sample);
    if (index.part(p).size > kLargestSample) continue;
    const std::filesystem::path shard = folder / index.shard_name(index.part(p).shard);
    pack::check_part(open_file(shard, O_RDONLY).get(), shard, index, sample, p);
  }
}

}  // namespace

void check_copy(const std::filesystem::path& folder, Verify verify, int threads) {
  if (verify == Verify::off) return;
  const pack::Index index = pack::Index::load(folder / pack::kIndexName);
  if (verify == Verify::quick) {
    for (std::size_t s = 0; s < index.shards(); ++s) pack::check_shard_size(folder, index, s);
    check_some_samples(folder, index);
    return;
  }
  parallel_for(index.shards(), threads,
               [&](std::size_t s, const std::function<bool()>&) { pack::check_digests(folder, index, s); });
}

}  // namespace lockstep::transfer
