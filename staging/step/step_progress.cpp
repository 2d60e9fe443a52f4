#include "staging/step/step_progress.h"

#include "common/clock.h"
#include "common/error.h"
#include "common/leaf/source_name.h"
#include "staging/step/step_report.h"

namespace lockstep::transfer {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

}  // namespace

void StepProgress::update(const std::string& source, const PutProgress& now) {
  const std::lock_guard lock(mutex_);
  if (done_) return;
  const std::uint64_t time = monotonic_ns();
  const auto [begun, first] = begun_ns_.try_emplace(source, time);
  if (begun_ns_.size() == 1 && first) told_ns_ = time;
  const double seconds = seconds_between(begun->second, time);
  if (tell_ && time - told_ns_ >= static_cast<std::uint64_t>(tell_every_.count())) {
    told_ns_ = time;
    tell_({entry_name(source), now.done, now.total, seconds});
  }
  if (time - written_ns_ < kSecond) return;
  written_ns_ = time;
  PutResult so_far;
  so_far.source = source;
  so_far.bytes = now.total;
  so_far.from_source = now.from_source;
  so_far.from_peers = now.from_peers;
  so_far.seconds = seconds;
  write("staging", {so_far}, now.done);
}

void StepProgress::done(const std::string& state, const std::vector<PutResult>& results) {
  const std::lock_guard lock(mutex_);
  done_ = true;
  write(state, results);
}

void StepProgress::failed() {
  {
    const std::lock_guard lock(mutex_);
    if (done_) return;
  }
  done("failed", {});
}

void StepProgress::write(const std::string& state, const std::vector<PutResult>& results,
                         std::optional<std::uint64_t> bytes_done) {
  if (folder_.empty()) return;
  try {
    write_staging_record(folder_, hello_, state, results, bytes_done);
  } catch (const Error& error) {
    // The data matters more than its record.
    print_for_job(fmt::format("{}: cannot write the record of staging: {}", hello_.node, error.what()));
    folder_.clear();
  }
}

}  // namespace lockstep::transfer
