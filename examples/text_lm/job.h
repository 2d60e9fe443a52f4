// The device, the data, the model and the loader of a rank.
//
// Threads: the training thread.
#pragma once

#include <memory>
#include <optional>

#include "examples/text_lm/model.h"
#include "examples/text_lm/options.h"
#include "runtime/comm/world.h"
#include "runtime/data/loader.h"
#include "staging/pack/reader.h"

namespace lockstep::text_lm {

struct Job {
  torch::Device device = torch::kCPU;
  std::unique_ptr<pack::Reader> pages{};
  std::unique_ptr<pack::Reader> heldout{};
  LanguageModel model{nullptr};
  std::unique_ptr<data::Loader> loader{};  // of the pages
};

/// Opens the data, and makes the model and the loader. All ranks call it. Returns main's exit code if a rank failed,
/// whose line is then printed.
std::optional<int> open(Job& job, const Options& options, World& world);

}  // namespace lockstep::text_lm
