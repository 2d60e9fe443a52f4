// The state that DistributedOptimizer saves in an archive.
#pragma once

#include <torch/torch.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "runtime/torch_archive.h"
#include "runtime/train/distributed_optimizer.h"
#include "tests/archive_in_memory.h"
#include "tests/integration/mpi_world.h"

namespace lockstep::testing {

struct SavedOptimizer {
  std::map<std::string, std::map<std::string, c10::IValue>> parameters;  ///< by name
  std::vector<torch::Tensor> groups;                                     ///< their options

  /// As DistributedOptimizer writes it.
  void save(torch::serialize::OutputArchive& archive) const {
    c10::List<std::string> names;
    for (const auto& [name, entries] : parameters) {
      torch::serialize::OutputArchive state(archive.compilation_unit());
      for (const auto& [key, value] : entries) state.write(key, value);
      archive.write(std::to_string(names.size()), state);
      names.push_back(name);
    }
    archive.write("parameters", names);
    archive.write("groups", c10::List<torch::Tensor>(groups));
  }

  void load(torch::serialize::InputArchive& archive) {
    groups = value_in(archive, "groups").toTensorVector();
    const auto names = value_in(archive, "parameters").toList();
    for (std::size_t i = 0; i < names.size(); ++i) {
      torch::serialize::InputArchive state;
      archive.read(std::to_string(i), state);
      auto& entries = parameters[names.get(i).toStringRef()];
      for (const std::string& key : state.keys()) entries[key] = value_in(state, key.c_str());
    }
  }
};

/// The state that `from` saves, loaded by `into`.
template <typename From, typename Into>
void copy_state(const From& from, Into& into) {
  load_from(into, [&](auto& archive) { from.save(archive); });
}

/// All ranks call it; the state is on rank 0.
inline SavedOptimizer state_on_rank_0(const DistributedOptimizerBase& optimizer) {
  auto archive = saved_by([&](auto& written) { optimizer.save(written); });
  SavedOptimizer state;
  if (world().rank() == 0) {
    state.load(archive);
  } else {
    EXPECT_TRUE(archive.keys().empty());
  }
  return state;
}

/// Rank 0 writes the file; the others return when it is there.
inline void save_to_file(const DistributedOptimizerBase& optimizer, const std::filesystem::path& file) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  if (world().rank() == 0) archive.save_to(file.string());
  any_rank(false);
}

inline void load_from_file(DistributedOptimizerBase& optimizer, const std::filesystem::path& file) {
  torch::serialize::InputArchive archive;
  archive.load_from(file.string());
  optimizer.load(archive);
}

}  // namespace lockstep::testing
