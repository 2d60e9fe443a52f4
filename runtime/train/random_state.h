// Saves and restores the states of random generators.
//
// Threads: safe from any.
#pragma once

#include <torch/torch.h>

#include <optional>
#include <vector>

namespace lockstep::train {

/// The first device of these tensors that is not the CPU.
std::optional<torch::Device> device_of(const std::vector<torch::Tensor>& tensors);

/// The default generators of the CPU and of another device.
std::vector<at::Generator> default_generators(std::optional<torch::Device> device);

torch::Tensor state_of(at::Generator generator);
void set_state(at::Generator generator, const torch::Tensor& state);

class RandomState {
 public:
  explicit RandomState(std::vector<at::Generator> generators);

  /// The generators continue as they would have continued when this object was made.
  void restore() const;

 private:
  std::vector<at::Generator> generators_;
  std::vector<torch::Tensor> states_;
};

/// The scope of a forward that must leave no trace: at its end, the random generators and the module's buffers
/// (running statistics) are restored. For the training thread.
class [[nodiscard]] Rehearsal {
 public:
  explicit Rehearsal(const torch::nn::Module& module);
  ~Rehearsal();
  Rehearsal(const Rehearsal&) = delete;
  Rehearsal& operator=(const Rehearsal&) = delete;

 private:
  RandomState random_;
  std::vector<torch::Tensor> buffers_;
  std::vector<torch::Tensor> kept_;  // the buffers' values
};

}  // namespace lockstep::train
