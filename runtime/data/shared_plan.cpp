#include "runtime/data/shared_plan.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

namespace lockstep::data {
namespace {

// The text says where the block begins and where the next one does; then come its samples and the
// micro-batches' ends.
struct Sizes {
  std::uint64_t text = 0;
  std::uint64_t ids = 0;
  std::uint64_t ends = 0;
  std::uint64_t samples = 0;  // of the data set
};

OncePerNode::Key key_of(const BlockwisePlanner& planner) {
  const std::string text = nlohmann::json{planner.next_start(), planner.ends_at()}.dump();
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return {.low = hash.low64, .high = hash.high64};
}

OncePerNode::Bytes bytes_of(const PlannedBlock& block, bool more, const PlanState& next) {
  const std::string text = nlohmann::json{{"start", block.start}, {"next", next}, {"more", more}}.dump();
  const auto ids = std::as_bytes(block.plan.ids());
  const auto ends = std::as_bytes(block.plan.ends());
  const Sizes sizes{text.size(), ids.size(), ends.size(), block.plan.samples()};
  OncePerNode::Bytes bytes;
  bytes.reserve(sizeof sizes + text.size() + ids.size() + ends.size());
  for (const auto part : {std::as_bytes(std::span(&sizes, 1)), std::as_bytes(std::span(text)), ids, ends}) {
    bytes.insert(bytes.end(), part.begin(), part.end());
  }
  return bytes;
}

// The next so many bytes, as elements: they may begin anywhere.
template <typename T>
std::vector<T> take(const std::byte*& place, std::size_t bytes) {
  std::vector<T> elements(bytes / sizeof(T));
  if (bytes > 0) std::memcpy(elements.data(), place, bytes);
  place += bytes;
  return elements;
}

}  // namespace

bool SharedPlan::next_block(PlannedBlock& block) {
  bool more = false;
  const auto planned_there = node_->get(key_of(*planner_), [&] {
    more = planner_->next_block(block);
    return bytes_of(block, more, planner_->next_start());
  });
  if (!planned_there) return more;
  const std::byte* place = planned_there->data();
  const Sizes sizes = take<Sizes>(place, sizeof(Sizes)).front();
  const auto text = take<char>(place, sizes.text);
  const auto ids = take<SampleId>(place, sizes.ids);
  const auto ends = take<std::size_t>(place, sizes.ends);
  const auto json = nlohmann::json::parse(text);
  block.start = json.at("start").get<PlanState>();
  block.plan = Plan(block.start.geometry, sizes.samples, block.start.data);
  block.plan.assign(ids, ends);
  planner_->go_to(json.at("next").get<PlanState>());
  return json.at("more").get<bool>();
}

std::string fingerprint_of(const PlannedBlock& block) {
  const auto ids = std::as_bytes(block.plan.ids());
  const auto ends = std::as_bytes(block.plan.ends());
  return fmt::format("{:016x}{:016x}", XXH3_64bits(ids.data(), ids.size()),
                     XXH3_64bits(ends.data(), ends.size()));
}

}  // namespace lockstep::data
