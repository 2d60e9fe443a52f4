// Folders and comparisons for the tests of checkpoints.
#pragma once

#include <torch/torch.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>

#include "common/error.h"
#include "runtime/lockstep.h"
#include "tests/integration/ddp/models.h"
#include "tests/integration/mpi_world.h"

namespace lockstep::testing {

inline const auto kDecayingAdamW = torch::optim::AdamWOptions(0.01).weight_decay(0.1);

/// The same temporary folder on all ranks, removed when the test ends on all of them.
class SharedFolder {
 public:
  SharedFolder() {
    static int count = 0;
    std::int64_t id = world().rank() == 0 ? ::getpid() : 0;
    world().communicator().broadcast({&id, 1, comm::DataType::i64}, 0, "a test's folder")->wait();
    path_ = std::filesystem::temp_directory_path() / fmt::format("lockstep-checkpoint-{}-{}", id, count++);
    if (world().rank() == 0) std::filesystem::remove_all(path_);
    world().communicator().barrier("a test's folder")->wait();
  }
  ~SharedFolder() {
    any_rank(false);
    std::error_code ignored;
    if (world().rank() == 0) std::filesystem::remove_all(path_, ignored);
  }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  const auto left = a.detach().contiguous();
  const auto right = b.detach().contiguous();
  return left.sizes() == right.sizes() && left.scalar_type() == right.scalar_type() &&
         std::memcmp(left.data_ptr(), right.data_ptr(), left.nbytes()) == 0;
}

inline bool same_bits(const torch::nn::Module& a, const torch::nn::Module& b) {
  for (std::size_t i = 0; i < a.parameters().size(); ++i) {
    if (!same_bits(a.parameters()[i], b.parameters()[i])) return false;
  }
  return true;
}

}  // namespace lockstep::testing
