// What the training programs share.
//
// Threads: the training thread.
#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/comm/world.h"
#include "staging/pack/reader.h"

namespace lockstep {

/// Data that the plugin staged for the job, under the name that prepare.sh gave it; "" without staging.
std::filesystem::path staged(const char* name);

/// Opens the pack that `option` names. Throws Error if `path` is empty, as without that option and without staging.
std::unique_ptr<pack::Reader> open_pack(const std::filesystem::path& path, const char* option);

/// `name` is "cpu", "cuda", or "auto": the node's devices if it has some that LibTorch can use. On a node
/// with several devices a rank takes the one with its local rank; Slurm may also show each task only its own.
/// Throws UsageError for "cuda" if there is no device, and if there are fewer devices than ranks on the node.
c10::Device choose_device(const std::string& name, const World& world);

/// Whether `work` succeeded on all ranks, which call it together. If not, the lowest rank that failed prints why, in
/// one line that begins with the program's name. `label` names the work in errors, the same on all ranks.
bool done_on_all_ranks(World& world, std::string_view program, std::string_view label,
                       const std::function<void()>& work);

/// Rank 0 prints what lockstep-report begins with, from the records of the ranks on its node, and where all records are.
/// Nothing without records, and only their place in a build without the exporters. In your own program call lockstep-report, or read its --json.
void print_verdict(World& world);

}  // namespace lockstep
