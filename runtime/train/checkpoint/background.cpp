#include "runtime/train/checkpoint/background.h"

#include <chrono>
#include <exception>
#include <memory>
#include <utility>

#include "common/background_cpus.h"

namespace lockstep::checkpoint {
namespace {

bool is_done(const std::shared_future<void>& future) {
  return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
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

void Background::wait_for_memory() {
  if (jobs_.empty()) return;
  jobs_.back().released.wait();
  if (jobs_.size() > 1) jobs_[jobs_.size() - 2].done.wait();
}

void Background::rethrow() {
  std::exception_ptr first;
  while (!jobs_.empty() && is_done(jobs_.front().done)) {
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
