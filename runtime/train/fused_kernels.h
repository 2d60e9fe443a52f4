// Computes the element-wise updates of the fused optimizers, on plain arrays, so that the compiler can
// vectorise them for each kind of processor. This header is internal.
//
// Threads: calls for disjoint ranges may run at once.
#pragma once

#include <cstdint>

namespace lockstep::train {

struct AdamStep {
  double learning_rate = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  double correction1 = 1;  ///< 1 - beta1^step
  double correction2 = 1;  ///< 1 - beta2^step
  double number = 1;       ///< of the step, from 1

  bool operator==(const AdamStep&) const = default;
};

template <typename T>
struct AdamArrays {
  T* values;
  const T* gradients;
  T* averages;
  T* squares;
  T* largest_squares;  ///< amsgrad only, else null
};

/// One step of Adam for the elements [first, end); with `decoupled` weight decay it is AdamW.
void adam(const AdamArrays<float>& arrays, std::int64_t first, std::int64_t end, const AdamStep& step,
          bool decoupled);
void adam(const AdamArrays<double>& arrays, std::int64_t first, std::int64_t end, const AdamStep& step,
          bool decoupled);

struct SgdStep {
  double learning_rate = 0;
  double momentum = 0;
  double damped = 1;  ///< the gradient's factor in the momentum
  double weight_decay = 0;
  bool nesterov = false;

  bool operator==(const SgdStep&) const = default;
};

/// `momenta` is null if there is no momentum.
void sgd(float* values, const float* gradients, float* momenta, std::int64_t first, std::int64_t end,
         const SgdStep& step);
void sgd(double* values, const double* gradients, double* momenta, std::int64_t first, std::int64_t end,
         const SgdStep& step);

}  // namespace lockstep::train
