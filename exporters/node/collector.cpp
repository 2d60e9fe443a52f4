#include "exporters/node/collector.h"

#include <chrono>
#include <exception>

#include "common/clock.h"
#include "common/leaf/number.h"
#include "common/process.h"
#include "exporters/families/rank_families.h"

namespace lockstep::exporter {

namespace {

constexpr std::chrono::seconds kCacheKeep{30};
constexpr std::chrono::minutes kNameKeep{10};

// Of a user id in digits; nullopt if it has none, or if the directory does not answer.
std::optional<std::string> name_of_user(const std::string& text) {
  const std::optional<uid_t> uid = to_number<uid_t>(text);
  std::string name = uid ? user_name(*uid) : text;
  return name == text ? std::nullopt : std::optional(std::move(name));
}

}  // namespace

Collector::Collector(CollectorOptions options)
    : options_(std::move(options)),
      scanner_(options_.records, options_.limits),
      cache_(options_.cache, kCacheKeep),
      names_(&name_of_user, kNameKeep) {
}

std::string Collector::page() {
  const std::lock_guard lock(mutex_);
  try {
    return make();
  } catch (const std::exception&) {
    ++own_.scrape_errors;
    throw;
  }
}

std::string Collector::make() {
  const std::uint64_t begin = monotonic_ns();
  const auto unix_now = std::chrono::system_clock::now().time_since_epoch();
  const auto now = std::chrono::steady_clock::now();
  ScanResult scan = scanner_.scan(std::chrono::duration_cast<std::chrono::nanoseconds>(unix_now).count());
  for (JobRecords& job : scan.jobs) job.user_name = names_.get(job.user, now).value_or("");
  own_.dropped_series += scan.dropped_files * series_per_rank();
  own_.record_errors += scan.record_errors;
  own_.staging_errors += scan.staging_errors;
  for (const std::string& line : scan.new_errors) say(line);
  const CacheUsage& usage = cache_.usage(now);
  own_.cache_errors = cache_.errors();
  if (cache_.error() != cache_error_ && !cache_.error().empty()) say(cache_.error());
  cache_error_ = cache_.error();
  own_.scrape_seconds = seconds_between(begin, monotonic_ns());
  return make_page(scan, options_.node, usage, own_);
}

}  // namespace lockstep::exporter
