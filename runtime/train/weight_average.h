// An exponential moving average of a module's weights (EMA), which often generalises better than the weights
// of the last step (Polyak and Juditsky 1992).
//
//   lockstep::WeightAverage average(*model, 0.999);
//   …
//     optimizer.step();
//     average.update();
//   …
//   {
//     const auto averaged = average.swap();   // evaluate with the averages
//     evaluate(model);
//   }                                         // the trained weights are back
//
// All ranks have the same weights after each step, so each keeps the same average without communication.
//
// Threads: the training thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace lockstep {

namespace checkpoint {
class AverageItem;
}

class WeightAverage {
 public:
  /// Keeps a copy of each parameter that is floating point, in float for 16-bit types; buffers are not averaged. The
  /// module must outlive this object. Throws UsageError for a decay outside of 0 to 1.
  WeightAverage(torch::nn::Module& module, double decay);

  /// average = decay * average + (1 - decay) * weights. In the first steps the decay is smaller, (1 + n) /
  /// (10 + n), so that the initial weights do not count for long. Throws UsageError while swapped.
  void update();

  /// The module has the averages until the scope ends. Throws UsageError if they are swapped already. The end of the
  /// scope gives the trained weights back, and throws UsageError if the weights were changed in the scope (by an
  /// optimizer), because that change is lost.
  class [[nodiscard]] Swapped {
   public:
    ~Swapped() noexcept(false);
    Swapped(const Swapped&) = delete;
    Swapped& operator=(const Swapped&) = delete;

   private:
    friend class WeightAverage;
    explicit Swapped(WeightAverage& average);
    WeightAverage& average_;
    std::vector<torch::Tensor> trained_;
    int exceptions_;  // being handled when the scope began
  };
  Swapped swap() { return Swapped(*this); }
  /// Whether the module has the averages now.
  bool swapped() const { return swapped_; }

  /// The averages, in the order of parameters_of(module), and the number of updates.
  const std::vector<torch::Tensor>& averages() const { return averages_; }
  std::int64_t updates() const { return updates_; }

  /// For checkpoints. load() throws Error, and changes nothing, if the number or the shapes differ. Throw UsageError while
  /// swapped.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  friend class checkpoint::AverageItem;
  void refuse_swapped(const char* call) const;
  void set_state(const std::vector<torch::Tensor>& averages, std::int64_t updates);

  std::vector<torch::Tensor> weights_;
  std::vector<torch::Tensor> averages_;
  double decay_;
  std::int64_t updates_ = 0;
  bool swapped_ = false;
};

}  // namespace lockstep
