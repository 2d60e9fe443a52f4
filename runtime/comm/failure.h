// How a rank's failure ends the whole job. A rank that is gone leaves the others waiting in a collective that
// nobody can take back, so a failure prints one line and aborts the job everywhere; if that does not return,
// the process leaves by itself. All of it is over 5 s after an operation's time.
//
// Threads: safe from any.
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace lockstep::comm {

/// Says who this is ("rank 1 on n2") and how to abort the job; `abort` may be null (one rank alone). Installs
/// the handler for exceptions that nobody catches.
void install_failure_handling(const std::string& who, void (*abort)(int exit_code));

/// When the way to abort is about to be gone: MPI ends.
void forget_how_to_abort();

/// "rank 1 on n2"; "rank 0" before it is known.
const std::string& who_am_i();

/// Prints "lockstep: rank 1 on n2: <message>" and ends the job.
[[noreturn]] void end_job(const std::string& message, int exit_code = 1);

/// The same for what several ranks find at once: one of them prints it.
[[noreturn]] void end_job_once(const std::string& message);

/// Ends the job because this operation ("all_reduce of bucket 3 (1024 bytes)") took longer than
/// operation_timeout(): one line says what every rank was doing (comm/watch/watch.h), or, without a watch,
/// this operation.
[[noreturn]] void timed_out(const std::string& operation);

/// To be called when communication has failed, before that is reported: a rank that is gone explains it
/// better, and the watch may be about to say so. Returns after 2 s unless the job ends before.
void await_verdict();

/// LOCKSTEP_TIMEOUT: how long an operation may take before the job is ended.
std::chrono::seconds operation_timeout();

/// Counts how long one has waited for an operation, but not the time for which the whole job was suspended
/// (scontrol suspend, a debugger): between two looks no more than two seconds count.
class Patience {
 public:
  /// Whether operation_timeout() has passed; call it at least every second.
  bool over();
  /// At most a second, and what is left.
  std::chrono::steady_clock::duration look_again_in() const;

 private:
  static constexpr std::chrono::seconds kLongestStep{2};
  std::chrono::steady_clock::time_point looked_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::duration waited_{0};
};

/// The steps of ending, for comm/watch: one thread of the process gets true, prints the reason and leaves;
/// any other waits for that.
bool claim_end();
[[noreturn]] void wait_for_the_end();
void print_line(const std::string& line);  ///< "lockstep: <line>" on standard error, whole
/// Aborts the job, unless the process was ended within `patience`. If that does not return, the process
/// leaves by itself 1.5 s from now.
[[noreturn]] void leave_job(int exit_code, std::chrono::milliseconds patience);

/// Ends the job with a message if its block takes longer than operation_timeout(). For calls that cannot be
/// cancelled.
class Deadline {
 public:
  explicit Deadline(std::string what);
  ~Deadline();
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::comm
