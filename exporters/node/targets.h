// The nodes' exporters as a list for Prometheus' service discovery, for sites without a static list: the format of
// file_sd files and of http_sd answers.
//
// Threads: safe from any.
#pragma once

#include <string>

namespace lockstep::exporter {

/// The exporters of all nodes that `sinfo` lists, except those that are powered down or do not exist yet, at
/// `port`: [{"targets":["n1:9753",...]}]. Throws Error if sinfo cannot be run, fails, or takes longer than 10 s.
std::string targets_of_slurm(int port);

/// The same from what `sinfo --noheader --Node --all --format="%N %T"` prints.
std::string targets_of(const std::string& sinfo, int port);

}  // namespace lockstep::exporter
