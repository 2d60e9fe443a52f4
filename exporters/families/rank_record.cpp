#include "exporters/families/rank_record.h"

#include <charconv>
#include <utility>

#include "exporters/record/reader.h"
#include "exporters/record/waits.h"

namespace lockstep::exporter {
namespace {

// Enough steps for the straggler score; reports read the whole ring.
constexpr std::size_t kTailSteps = 32;
constexpr std::string_view kPrefix = "rank-";
constexpr std::string_view kSuffix = ".record";

}  // namespace

double own_seconds(const std::vector<record::Step>& steps) {
  std::uint64_t own = 0;
  for (const record::Step& step : steps) own += step.own_ns();
  return steps.empty() ? 0.0 : static_cast<double>(own) * 1e-9 / static_cast<double>(steps.size());
}

std::optional<int> rank_of(std::string_view file) {
  if (!file.starts_with(kPrefix) || !file.ends_with(kSuffix)) return std::nullopt;
  if (file.size() <= kPrefix.size() + kSuffix.size()) return std::nullopt;
  file = file.substr(kPrefix.size(), file.size() - kPrefix.size() - kSuffix.size());
  int rank = 0;
  const auto [end, error] = std::from_chars(file.data(), file.data() + file.size(), rank);
  if (error != std::errc() || end != file.data() + file.size() || rank < 0) return std::nullopt;
  return rank;
}

RankRecord read_rank_record(int folder, const std::string& file, int rank) {
  record::Snapshot snapshot = record::Reader(folder, file).read(kTailSteps);
  if (snapshot.identity.rank != rank) throw record::RecordError("its rank and its name differ");
  const double own = own_seconds(snapshot.steps);
  auto waits = record::waits_by_rank(snapshot.steps);
  snapshot.steps = {};
  return {.snapshot = std::move(snapshot), .own_seconds = own, .waits = std::move(waits)};
}

}  // namespace lockstep::exporter
