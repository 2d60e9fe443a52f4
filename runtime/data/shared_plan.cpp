#include "runtime/data/shared_plan.h"

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "common/error.h"

namespace lockstep::data {
namespace {

enum Outcome : std::uint8_t { done, over, wrong_call, failed };

// A block as bytes: lengths of the three parts, then the parts.
std::vector<std::uint8_t> bytes_of(const PlannedBlock& block) {
  const nlohmann::json json = block.start;
  std::string text = json.dump();
  const auto ids = block.plan.ids();
  const auto ends = block.plan.ends();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t sizes[] = {text.size(), ids.size_bytes(), ends.size_bytes(), block.plan.samples()};
  std::vector<std::uint8_t> bytes(sizeof(sizes) + text.size() + ids.size_bytes() + ends.size_bytes());
  std::uint8_t* place = bytes.data();
  const auto put = [&place](const void* data, std::size_t size) {
    if (size > 0) std::memcpy(place, data, size);
    place += size;
  };
  put(sizes, sizeof(sizes));
  put(text.data(), text.size());
  put(ids.data(), ids.size_bytes());
  put(ends.data(), ends.size_bytes());
  return bytes;
}

PlannedBlock block_of(const std::vector<std::uint8_t>& bytes) {
  std::uint64_t sizes[4];
  std::memcpy(sizes, bytes.data(), sizeof(sizes));
  const std::uint8_t* place = bytes.data() + sizeof(sizes);
  PlannedBlock block;
  block.start = nlohmann::json::parse(place, place + sizes[0]).get<PlanState>();
  place += sizes[0];
  std::vector<SampleId> ids(sizes[1] / sizeof(SampleId));
  if (!ids.empty()) std::memcpy(ids.data(), place, sizes[1]);
  place += sizes[1];
  std::vector<std::size_t> ends(sizes[2] / sizeof(std::size_t));
  if (!ends.empty()) std::memcpy(ends.data(), place, sizes[2]);
  block.plan = Plan(block.start.geometry, sizes[3], block.start.data);
  block.plan.assign(ids, ends);
  return block;
}

}  // namespace

// Everyone gets rank 0's bytes: first how many, then those.
void SharedPlan::share(std::vector<std::uint8_t>& bytes, std::string_view label) {
  auto size = static_cast<std::int64_t>(bytes.size());
  communicator_.broadcast({&size, 1, comm::DataType::i64}, 0, label)->wait();
  bytes.resize(static_cast<std::size_t>(size));
  communicator_.broadcast({bytes.data(), bytes.size(), comm::DataType::u8}, 0, label)->wait();
}

// Rank 0 works and everyone gets the result: its bytes, or what it threw. Empty: it was over.
template <typename Work>
std::vector<std::uint8_t> SharedPlan::lead(Work&& work, std::string_view label) {
  std::vector<std::uint8_t> bytes;
  if (leads()) {
    Outcome outcome = done;
    std::string text;
    try {
      if (!work(bytes)) outcome = over;
    } catch (const UsageError& error) {
      outcome = wrong_call;
      text = error.what();
    } catch (const std::exception& error) {
      outcome = failed;
      text = error.what();
    }
    if (outcome == wrong_call || outcome == failed) bytes.assign(text.begin(), text.end());
    bytes.push_back(outcome);
  }
  share(bytes, label);
  const auto outcome = static_cast<Outcome>(bytes.back());
  bytes.pop_back();
  if (outcome == wrong_call) throw UsageError(std::string(bytes.begin(), bytes.end()));
  if (outcome == failed) throw Error(std::string(bytes.begin(), bytes.end()));
  if (outcome == over) bytes.clear();
  return bytes;
}

SharedPlan::SharedPlan(const LengthSource& source, const PlanOptions& options,
                       comm::Communicator& communicator, const std::optional<PlanState>& state)
    : communicator_(communicator) {
  lead(
      [&](std::vector<std::uint8_t>&) {
        if (options.ranks != communicator.size()) {
          fail_usage("a plan for {} ranks cannot be shared by {}", options.ranks, communicator.size());
        }
        planner_ = state ? std::make_unique<EpochPlanner>(source, options, *state)
                         : std::make_unique<EpochPlanner>(source, options);
        return true;
      },
      "the plan's beginning");
}

bool SharedPlan::next_block(PlannedBlock& block) {
  const std::vector<std::uint8_t> bytes = lead(
      [&](std::vector<std::uint8_t>& planned) {
        if (!planner_->next_block(block)) return false;
        planned = bytes_of(block);
        return true;
      },
      "a block of the plan");
  if (bytes.empty()) {
    block = {};
    return false;
  }
  if (!leads()) block = block_of(bytes);
  return true;
}

void SharedPlan::change(const Cost& cost, const std::vector<double>& speeds) {
  lead(
      [&](std::vector<std::uint8_t>&) {
        planner_->change(cost, speeds);
        return true;
      },
      "a change of the plan");
}

PlanState SharedPlan::state_after(const PlannedBlock& block, std::uint64_t micro_batches) const {
  if (!leads()) fail_usage("rank {} cannot tell the plan's state: rank 0 plans", communicator_.rank());
  return planner_->state_after(block, micro_batches);
}

}  // namespace lockstep::data
