#include "runtime/train/checkpoint/stop_signal.h"

#include <algorithm>
#include <utility>

#include "common/environment.h"
#include "common/error.h"
#include "runtime/ddp/step_message.h"

namespace lockstep {
namespace {

using ddp::StopRequest;

bool stop_exists = false;

void note(int signal) {
  StopRequest::mine = signal;
}

}  // namespace

StopSignal::StopSignal(World& world, const std::vector<int>& signals)
    : world_(world), messages_(StopRequest::messages) {
  if (stop_exists) fail_usage("StopSignal: there is another one in this process");
  stop_exists = true;
  StopRequest::mine = 0;
  StopRequest::agreed = 0;
  for (const int signal : signals) {
    struct sigaction action {};
    struct sigaction before {};
    action.sa_handler = note;
    action.sa_flags = SA_RESTART;
    if (::sigaction(signal, &action, &before) == 0) before_.emplace_back(signal, before);
  }
  // lockstep-run got it before it started this program.
  const auto earlier = environment::get_integer("LOCKSTEP_SIGNAL");
  if (earlier && std::find(signals.begin(), signals.end(), *earlier) != signals.end())
    StopRequest::mine = static_cast<int>(*earlier);
}

StopSignal::~StopSignal() {
  for (const auto& [signal, before] : before_) ::sigaction(signal, &before, nullptr);
  stop_exists = false;
}

void StopSignal::exit() {
  if (work_) work_->wait();
  world_.exit(kExitCode);
}

bool StopSignal::poll() {
  if (work_) {
    work_->wait();
    work_.reset();
    agreed_ = *asked_;
  }
  // The signals travelled with the backwards of this step.
  const bool exchanged = std::exchange(messages_, StopRequest::messages) != StopRequest::messages;
  if (exchanged && agreed_ == 0) agreed_ = StopRequest::agreed;
  if (agreed_ != 0) return true;
  if (exchanged) return false;
  if (!asked_) asked_ = std::make_shared<std::int32_t>(0);
  *asked_ = StopRequest::mine;
  work_ = world_.communicator().all_reduce({asked_.get(), 1, comm::DataType::i32}, "stop signal",
                                           {.op = comm::ReduceOp::max, .keep = asked_});
  return false;
}

}  // namespace lockstep
