#include "exporters/node/collector.h"

#include <algorithm>
#include <chrono>
#include <exception>

#include "common/clock.h"

namespace lockstep::exporter {

constexpr std::chrono::seconds kCacheKeep{30};

Collector::Collector(CollectorOptions options)
    : options_(std::move(options)),
      scanner_(options_.records, options_.limits),
      cache_(options_.cache, kCacheKeep) {
}

std::string Collector::page() noexcept {
  const std::lock_guard lock(mutex_);
  const std::uint64_t begin = monotonic_ns();
  ScanResult scan;
  CacheUsage usage;
  try {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    scan = scanner_.scan(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
    for (JobRecords& job : scan.jobs) {
      job.user_name = names_.name_of(job.user, std::chrono::steady_clock::now());
    }
    own_.dropped_series += scan.dropped_files * series_per_rank();
    own_.record_errors += scan.record_errors;
    own_.staging_errors += scan.staging_errors;
    if (options_.say) std::for_each(scan.new_errors.begin(), scan.new_errors.end(), options_.say);
  } catch (const std::exception&) {
    ++own_.scrape_errors;
    scan = {};
  }
  try {
    const auto now = std::chrono::steady_clock::now();
    usage = cache_.usage(now);
    for (auto& [user, claim] : usage.claims) claim.user_name = names_.name_of(user, now);
    if (usage.file_system_bytes && !usage.bytes) ++own_.cache_errors;
  } catch (const std::exception&) {
    ++own_.cache_errors;
  }
  own_.scrape_seconds = seconds_between(begin, monotonic_ns());
  try {
    return make_page(scan.jobs, options_.node, usage, own_);
  } catch (const std::exception&) {
    ++own_.scrape_errors;
    return "";
  }
}

}  // namespace lockstep::exporter
