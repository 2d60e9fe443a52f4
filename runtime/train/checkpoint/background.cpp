#include "runtime/train/checkpoint/background.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <utility>

#include "common/background_cpus.h"

namespace lockstep::checkpoint {
namespace {

using Time = std::chrono::steady_clock::time_point;

bool is_ready(const std::shared_future<void>& future, Time until = {}) {
  return future.wait_until(until) == std::future_status::ready;
}

}  // namespace

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

}  // namespace lockstep::checkpoint
