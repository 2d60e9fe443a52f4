// The steps by which a process ends the whole job: one thread claims the end, prints the reason, and aborts
// the job. comm/failure.h and the control channel use them.
//
// Threads: safe from any.
#pragma once

#include <chrono>
#include <string>

namespace lockstep::comm {

/// How to abort the job on all ranks. Null: there is one rank, or MPI is ending.
void set_abort_function(void (*abort)(int exit_code));

/// True for one thread of the process: it prints the reason and leaves. All others call wait_for_job_end().
bool claim_job_end();
bool job_end_is_claimed();
[[noreturn]] void wait_for_job_end();

/// Prints "lockstep: <line>" on standard error in one piece.
void print_line(const std::string& line);

/// Aborts the job, unless something else ends the process within `delay`. If the abort does not return, the
/// process exits 1.5 s from now. `others_abort`: without an abort function, wait for another rank's abort.
[[noreturn]] void leave_job(int exit_code, std::chrono::milliseconds delay, bool others_abort);

}  // namespace lockstep::comm
