#include "runtime/data/skipped_samples.h"

#include <cstdio>
#include <string>

#include "runtime/data/plan/planner.h"

namespace lockstep::data {
namespace {

std::string file_of(const pack::Reader& reader, std::size_t number) {
  try {
    return reader.parts(number).at(0).shard;
  } catch (const std::exception&) {  // the sample's place is damaged too
    return "unknown";
  }
}

}  // namespace

void SkippedSamples::add(const pack::Reader& reader, SampleId id, const DamagedSample& damage) {
  if (allowed_ == 0) throw damage;
  const std::size_t number = sample_of(id);
  const std::lock_guard lock(mutex_);
  if (!numbers_.insert(number).second) return;
  if (numbers_.size() > allowed_) {
    numbers_.erase(number);  // so that a loop that is begun again fails too
    fail(
        "{} (file {}): more damaged samples on this rank than the {} that LoaderOptions::skip_damaged allows",
        damage.what(), file_of(reader, number), allowed_);
  }
  fmt::print(stderr, "lockstep: {} (file {}): left out, {} of at most {} on this rank\n", damage.what(),
             file_of(reader, number), numbers_.size(), allowed_);
}

}  // namespace lockstep::data
