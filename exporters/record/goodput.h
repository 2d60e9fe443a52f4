// The share of a rank's time that trained, and where the rest went. docs/users/metrics.md defines it.
//
// Threads: safe from any.
#pragma once

#include <array>
#include <string>
#include <utility>

#include "exporters/record/record.h"

namespace lockstep::record {

/// Shares of the measured time; they add up to 1.
struct Goodput {
  double seconds = 0;        ///< the measured time
  double trained = 0;        ///< forward, backward and optimizer of steps that the loss scaler did not skip
  double skipped = 0;        ///< and of those that it skipped
  double start = 0;          ///< until the first step
  double input = 0;          ///< in steps: waiting for data, and copying it to the device
  double communication = 0;  ///< in steps: exposed communication, waiting for later ranks included
  double checkpoint = 0;     ///< in steps
  double other = 0;          ///< in steps, in no phase
  double between_steps = 0;  ///< evaluations, for example, and after the last step
};

/// The parts that did not train.
inline constexpr std::array<std::pair<const char*, double Goodput::*>, 7> kLostTimes = {
    {{"start", &Goodput::start},
     {"input", &Goodput::input},
     {"communication", &Goodput::communication},
     {"checkpoint", &Goodput::checkpoint},
     {"skipped", &Goodput::skipped},
     {"other", &Goodput::other},
     {"between steps", &Goodput::between_steps}}};

/// Of a rank, as shares of `seconds`. All zero if that is not positive.
Goodput goodput_of(const Snapshot& rank, double seconds);

/// "62 % of 4 min 10 s trained; the rest: input 20 %, start 10 %, …". `duration` is the measured time as text.
std::string to_text(const Goodput& goodput, const std::string& duration);

}  // namespace lockstep::record
