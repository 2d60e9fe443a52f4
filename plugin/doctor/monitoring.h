// Checks of the way from the ranks' records to Prometheus.
//
// Threads: safe from any.
#pragma once

#include <string>

#include "plugin/doctor/finding.h"
#include "plugin/spank/options/config.h"

namespace lockstep::doctor {

/// "exporter": lockstep-exporter runs on this node, as far as this user can tell. Not checked without the exporter's
/// group.
void check_exporter(const spank::Config& config, Report& report);

/// "prometheus": it answers at this address ("http://head:9090") and has this node's exporter, by the node's name or
/// one of its addresses, as a healthy target.
void check_prometheus(const std::string& url, const std::string& node, Report& report);

}  // namespace lockstep::doctor
