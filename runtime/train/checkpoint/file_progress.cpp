#include "runtime/train/checkpoint/file_progress.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "common/error.h"
#include "common/launcher.h"
#include "common/units.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/failure.h"
#include "runtime/comm/timeout.h"

namespace lockstep::checkpoint {
namespace {

using Time = std::chrono::steady_clock::time_point;

bool is_ready(const std::shared_future<void>& future, Time until = {}) {
  return future.wait_until(until) == std::future_status::ready;
}

}  // namespace

void FileProgress::begin(const std::string& what, std::uint64_t bytes) {
  const std::scoped_lock lock(mutex_);
  what_ = what;
  done_ = 0;
  total_ = bytes;
  ++changes_;
}

void FileProgress::advance(std::uint64_t bytes) {
  const std::scoped_lock lock(mutex_);
  done_ += bytes;
  ++changes_;
}

void FileProgress::touch() {
  const std::scoped_lock lock(mutex_);
  ++changes_;
}

std::uint64_t FileProgress::changes() const {
  const std::scoped_lock lock(mutex_);
  return changes_;
}

std::string FileProgress::stalled_text() const {
  const std::scoped_lock lock(mutex_);
  if (total_ == 0) return fmt::format("{} stands still", what_);
  return fmt::format("{} stands still at {} of {}", what_, format_bytes(done_), format_bytes(total_));
}

void Background::start(Work work) {
  auto released = std::make_shared<std::promise<void>>();
  const auto before = jobs_.empty() ? std::shared_future<void>() : jobs_.back().done;
  Job job{.released = released->get_future().share(), .done = {}};
  job.done = std::async(std::launch::async, [released, before, work = std::move(work)] {
               use_background_cpus();
               if (before.valid()) before.wait();
               bool has_released = false;
               const auto release = [&] {
                 if (!std::exchange(has_released, true)) released->set_value();
               };
               try {
                 work(release);
               } catch (...) {
                 release();
                 throw;
               }
               release();
             }).share();
  jobs_.push_back(std::move(job));
}

bool Background::wait_for_memory(std::chrono::milliseconds time) {
  if (jobs_.empty()) return true;
  const auto end = std::chrono::steady_clock::now() + time;
  return is_ready(jobs_.back().released, end) &&
         (jobs_.size() < 2 || is_ready(jobs_[jobs_.size() - 2].done, end));
}

bool Background::wait_for_all(std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  return std::all_of(jobs_.begin(), jobs_.end(), [&](const Job& job) { return is_ready(job.done, end); });
}

void Background::rethrow() {
  std::exception_ptr first;
  while (!jobs_.empty() && is_ready(jobs_.front().done)) {
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    try {
      job.done.get();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

void wait_for_files(comm::Communicator& communicator, const FileProgress& progress,
                    const std::function<bool(std::chrono::milliseconds)>& ended_within) {
  constexpr std::chrono::milliseconds kLongestPause{200};  // far below the shortest LOCKSTEP_TIMEOUT
  comm::OperationTimeout timeout;
  std::uint64_t seen = progress.changes();
  for (std::chrono::milliseconds pause{5};; pause = std::min(2 * pause, kLongestPause)) {
    std::int32_t works = ended_within(pause) ? 0 : 1;
    if (works == 0 || seen != progress.changes()) {
      seen = progress.changes();
      timeout.restart();
    } else if (timeout.expired()) {
      comm::end_job_once(fmt::format("{} for {} s (LOCKSTEP_TIMEOUT): check that the file system responds",
                                     progress.stalled_text(), comm::operation_timeout().count()));
    }
    communicator.all_reduce({&works, 1, comm::DataType::i32}, "work on files", {.op = comm::ReduceOp::max})
        ->wait();
    if (works == 0) return;
  }
}

void run_with_files(comm::Communicator& communicator, const FileProgress& progress, const std::string& label,
                    const std::function<void()>& work) {
  std::future<void> done = std::async(std::launch::async, work);
  wait_for_files(communicator, progress, [&](std::chrono::milliseconds pause) {
    return done.wait_for(pause) == std::future_status::ready;
  });
  const auto failure = comm::run_on_all_ranks(communicator, label, [&] { done.get(); });
  if (failure) fail("{}", failure->reason);
}

}  // namespace lockstep::checkpoint
