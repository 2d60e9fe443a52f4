// How the failure of one rank ends the whole job. The other ranks would wait for it in a collective that cannot be
// cancelled, so the failed rank prints one line and aborts the job on all nodes; if the abort does not return, the
// process exits. The job ends at most 5 s after an operation's timeout.
//
// Threads: safe from any.
#pragma once

#include <exception>
#include <memory>
#include <string>

namespace lockstep::comm {

/// `rank_name`: this rank in messages ("rank 1 on n2"). `abort` aborts the job; null for one rank alone.
/// Installs a handler for uncaught exceptions.
void install_failure_handling(const std::string& rank_name, void (*abort)(int exit_code));

/// "rank 1 on n2"; "rank 0" before install_failure_handling().
const std::string& this_rank_name();

/// The first line of the exception's message; LibTorch appends a stack of C++ frames.
std::string first_line_of(const std::exception_ptr& exception);

/// Prints "lockstep: rank 1 on n2: <message>" and ends the job.
[[noreturn]] void end_job(const std::string& message, int exit_code = 1);

/// As end_job(), for a failure that several ranks may find at the same time: only one of them prints.
[[noreturn]] void end_job_once(const std::string& message);

/// Ends the job because this operation ("all_reduce of bucket 3 (1024 bytes)") took longer than
/// operation_timeout(). One line says what every rank was doing (comm/control/control_channel.h), or names
/// only this operation if there is no control channel.
/// `advice` then replaces "another rank has ended, is stopped, or runs another operation".
[[noreturn]] void end_job_by_timeout(const std::string& operation, const std::string& advice = {});

/// Call it when communication has failed, before you report the error: the cause may be the end of another
/// rank, which the control channel is about to print. Returns after 2 s if the job has not ended.
void await_verdict();

/// Ends the job with a message if its block takes longer than operation_timeout(). For calls that cannot be
/// cancelled.
class Deadline {
 public:
  /// `advice`: as for end_job_by_timeout().
  explicit Deadline(std::string operation, std::string advice = {});
  ~Deadline();
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::comm
