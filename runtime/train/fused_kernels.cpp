#include "runtime/train/fused_kernels.h"

#include <cmath>

#include "common/vectorised.h"

namespace lockstep::train {
namespace {

template <typename T, bool kDecoupled, bool kAmsgrad>
inline void adam_loop(const AdamArrays<T>& arrays, std::int64_t first, std::int64_t end,
                      const AdamStep& step) {
  T* const __restrict values = arrays.values;
  const T* const __restrict gradients = arrays.gradients;
  T* const __restrict averages = arrays.averages;
  T* const __restrict squares = arrays.squares;
  T* const __restrict largest = arrays.largest_squares;
  const T beta1 = static_cast<T>(step.beta1);
  const T rest1 = static_cast<T>(1 - step.beta1);
  const T beta2 = static_cast<T>(step.beta2);
  const T rest2 = static_cast<T>(1 - step.beta2);
  const T eps = static_cast<T>(step.eps);
  const T decay = static_cast<T>(step.weight_decay);
  const T root = static_cast<T>(1 / std::sqrt(step.correction2));  // of the squares' bias correction
  const T kept = static_cast<T>(1 - step.learning_rate * step.weight_decay);
  const T rate = static_cast<T>(step.learning_rate / step.correction1);
  for (std::int64_t i = first; i < end; ++i) {
    const T gradient = kDecoupled ? gradients[i] : gradients[i] + decay * values[i];
    const T average = beta1 * averages[i] + rest1 * gradient;
    T square = beta2 * squares[i] + rest2 * gradient * gradient;
    averages[i] = average;
    squares[i] = square;
    if constexpr (kAmsgrad) {
      square = square > largest[i] ? square : largest[i];
      largest[i] = square;
    }
    const T value = kDecoupled ? values[i] * kept : values[i];
    values[i] = value - rate * average / (std::sqrt(square) * root + eps);
  }
}

template <typename T>
inline void any_adam(const AdamArrays<T>& arrays, std::int64_t first, std::int64_t end, const AdamStep& step,
                     bool decoupled) {
  const bool amsgrad = arrays.largest_squares != nullptr;
  if (decoupled && amsgrad) return adam_loop<T, true, true>(arrays, first, end, step);
  if (decoupled) return adam_loop<T, true, false>(arrays, first, end, step);
  if (amsgrad) return adam_loop<T, false, true>(arrays, first, end, step);
  adam_loop<T, false, false>(arrays, first, end, step);
}

template <typename T>
inline void sgd_loop(T* __restrict values, const T* __restrict gradients, T* __restrict momenta,
                     std::int64_t first, std::int64_t end, const SgdStep& step) {
  const T rate = static_cast<T>(step.learning_rate);
  const T decay = static_cast<T>(step.weight_decay);
  const T kept = static_cast<T>(step.momentum);
  const T damped = static_cast<T>(step.damped);
  if (momenta == nullptr) {
    for (std::int64_t i = first; i < end; ++i) values[i] -= rate * (gradients[i] + decay * values[i]);
    return;
  }
  const T direct = step.nesterov ? T{1} : T{0};
  const T through = step.nesterov ? kept : T{1};
  for (std::int64_t i = first; i < end; ++i) {
    const T gradient = gradients[i] + decay * values[i];
    const T momentum = kept * momenta[i] + damped * gradient;
    momenta[i] = momentum;
    values[i] -= rate * (direct * gradient + through * momentum);
  }
}

}  // namespace

LOCKSTEP_VECTORISED
void adam(const AdamArrays<float>& arrays, std::int64_t first, std::int64_t end, const AdamStep& step,
          bool decoupled) {
  any_adam(arrays, first, end, step, decoupled);
}

LOCKSTEP_VECTORISED
void adam(const AdamArrays<double>& arrays, std::int64_t first, std::int64_t end, const AdamStep& step,
          bool decoupled) {
  any_adam(arrays, first, end, step, decoupled);
}

LOCKSTEP_VECTORISED
void sgd(float* values, const float* gradients, float* momenta, std::int64_t first, std::int64_t end,
         const SgdStep& step) {
  sgd_loop(values, gradients, momenta, first, end, step);
}

LOCKSTEP_VECTORISED
void sgd(double* values, const double* gradients, double* momenta, std::int64_t first, std::int64_t end,
         const SgdStep& step) {
  sgd_loop(values, gradients, momenta, first, end, step);
}

}  // namespace lockstep::train
