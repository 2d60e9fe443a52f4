#include <fmt/format.h>

#include "staging/transfer/copy/chunk_plan.h"
#include "tests/simulation/world.h"

namespace lockstep::simulation {

void World::set_up() {
  const std::uint32_t count = options_.nodes;
  nodes_.resize(count);
  if (options_.faults && chance(0.4)) {
    for (std::uint32_t i = 0; i < 1 + any(3); ++i) holders_.insert(any(count));
  }
  holders_.insert(options_.holders.begin(), options_.holders.end());
  // Files of a few chunks, which are divided between the sources.
  std::vector<transfer::ChunkPlan> plans;
  std::size_t files = 0;
  for (std::size_t source = 0; source < options_.sources; ++source) {
    const std::size_t chunks =
        options_.chunks * (source + 1) / options_.sources - options_.chunks * source / options_.sources;
    std::vector<std::uint64_t> sizes;
    for (std::size_t left = chunks; left > 0; left -= sizes.back()) {
      sizes.push_back(std::min<std::size_t>(left, options_.faults ? 1 + any(20) : 8));
      source_of_.insert(source_of_.end(), sizes.back(), source);
      file_of_.insert(file_of_.end(), sizes.back(), files++);
    }
    plans.emplace_back(std::move(sizes), 1);
  }
  std::vector<const transfer::ChunkPlan*> pointers;
  for (const transfer::ChunkPlan& plan : plans) pointers.push_back(&plan);
  const transfer::StreamPlan stream(std::move(pointers));
  std::vector<bool> held(options_.sources, !holders_.empty() || options_.rotating);
  readers_ = transfer::deal_chunks(stream, count, held);
  unheld_ = held.front() ? 0 : stream.size();
  for (std::uint32_t place = 0; place < count; ++place) {
    Node& node = nodes_[place];
    node.place = place;
    node.reader = options_.reader * (chance(0.1) ? 0.1 : 1);
    node.disk = options_.disk * (chance(0.1) ? 0.05 : 1);
    node.prepare = options_.prepare * (chance(0.1) ? 100 : 1);
    node.no_source = held.front() && chance(0.05);
    const bool has = holders_.contains(place);
    for (const std::size_t source : source_of_)
      node.disk_bytes.push_back(holds(place, source) ? Bytes::right : Bytes::none);
    if (has && chance(0.3)) node.disk_bytes[any(static_cast<std::uint32_t>(stream.size()))] = Bytes::wrong;
    if (has && chance(0.1)) node.disk_bytes[any(static_cast<std::uint32_t>(stream.size()))] = Bytes::none;
    std::vector<ListRelay::From> lists;
    for (std::size_t source = 0; source < options_.sources; ++source) {
      const bool makes = holds(place, source) || (place == 0 && !held.front()) || count == 1;
      lists.push_back(makes ? ListRelay::From::here : ListRelay::From::predecessor);
    }
    node.lists = ListRelay(lists);
  }
  const double length = 2 * static_cast<double>(stream.size()) * options_.chunk_bytes / options_.link + 0.2;
  const auto kill = [&](Node& node, double when) {
    at(when, [this, &node] {
      if (node.running && node.line.empty()) end(node, "killed");
    });
  };
  for (std::uint32_t i = 0; chance(0.5) && i < 1 + count / 16; ++i)
    kill(nodes_[any(count)], uniform(0, length));
  for (std::uint32_t i = 0; chance(0.3) && i < 3; ++i) {
    Node& node = nodes_[any(count)];
    at(uniform(0, length), [this, &node] { node.stopped_until = now_ + uniform(1, 60); });
  }
  if (chance(0.2)) {
    away_from_ = uniform(0, length);
    away_until_ = away_from_ + uniform(1, 45);
    for (std::uint32_t i = 0; i < 1 + any(count); ++i) away_.insert(any(count));
  }
}

bool World::holds(std::uint32_t place, std::size_t source) const {
  return options_.rotating ? source % nodes_.size() == place : holders_.contains(place);
}

WorldEnd World::judge() {
  WorldEnd end;
  const auto chunks = static_cast<double>(options_.chunks);
  for (const Node& node : nodes_) {
    const auto note = [&](const std::string& problem) {
      if (end.problem.empty()) end.problem = "node " + std::to_string(node.place) + " " + problem;
    };
    end.sent_max_ratio = std::max(end.sent_max_ratio, static_cast<double>(node.sent) / chunks);
    if (node.sent > options_.chunks + node.sent_again + 1)
      note(fmt::format("sent more than the data once: {} of {} chunks, {} of them again", node.sent,
                       options_.chunks, node.sent_again));
    if (!node.line.empty()) {
      ++end.failed;
      continue;
    }
    if (node.finished_at >= kNever) {
      note("did not end");
      continue;
    }
    ++end.complete;
    end.seconds = std::max(end.seconds, node.finished_at);
    if (holders_.contains(node.place)) continue;  // a holder may have had a damaged chunk
    for (const Bytes bytes : node.disk_bytes) end.published_wrong += bytes == Bytes::right ? 0 : 1;
    if (end.published_wrong > 0) note("published wrong bytes");
  }
  end.source_ratio = static_cast<double>(read_) / chunks;
  end.opens = opened_.size();
  if (given_up_ > 0 && end.problem.empty()) end.problem = "a node that is well was given up";
  if (read_ > unheld_ + allowed_ && end.problem.empty())
    end.problem =
        fmt::format("the source was read too often: {} chunks, {} + {} allowed", read_, unheld_, allowed_);
  return end;
}

}  // namespace lockstep::simulation
