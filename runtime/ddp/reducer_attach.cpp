// Reducer: puts hooks on the parameters, at construction and after the model was changed.
#include <algorithm>

#include "common/error.h"
#include "runtime/ddp/reducer.h"

namespace lockstep::ddp {
namespace {

// Converting a module does not convert .grad.
void fit_gradient(const torch::Tensor& parameter) {
  torch::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined()) return;
  if (gradient.sizes() != parameter.sizes()) {
    gradient = torch::Tensor();
  } else if (gradient.scalar_type() != parameter.scalar_type()) {
    gradient = gradient.to(parameter.scalar_type());
  }
}

}  // namespace

bool Reducer::accumulated(const torch::Tensor& tensor) const {
  for (std::size_t i = 0; i < used_.size(); ++i) {
    if (parameters()[i].tensor.is_same(tensor)) return used_[i] != 0;
  }
  return false;
}

// The current step needs such a gradient, so it cannot just be dropped.
bool Reducer::accumulated_in_another_shape(const torch::Tensor& tensor) const {
  const torch::Tensor& gradient = tensor.grad();
  return gradient.defined() && gradient.sizes() != tensor.sizes() && accumulated(tensor);
}

void Reducer::attach(const std::vector<NamedTensor>& all) {
  const torch::NoGradGuard no_grad;
  std::vector<NamedTensor> trained;
  std::vector<std::uint8_t> used;
  for (const auto& [name, tensor] : all) {
    if (!tensor.requires_grad()) continue;
    static_cast<void>(data_type_of(tensor.scalar_type(), fmt::format("parameter '{}'", name)));
    if (accumulated_in_another_shape(tensor)) {
      fail_usage(
          "parameter '{}' has another shape than the gradient accumulated for it; change the model between optimizer steps, or call discard() first",
          name);
    }
    trained.push_back({name, tensor});
    used.push_back(accumulated(tensor) ? 1 : 0);
  }
  if (trained.empty()) fail_usage("the model has no parameter that requires a gradient");
  for (const auto& parameter : trained) fit_gradient(parameter.tensor);
  put_hooks_on(trained);
  buckets_.emplace(device_communicator_, options_, std::move(trained));

  // As before the first synchronised backward.
  expected_.clear();
  used_anywhere_ = std::make_shared<std::vector<std::uint8_t>>(used.size() + 1, std::uint8_t{1});
  ordered_ = false;
  used_ = std::move(used);
  reached_.clear();
  averaged_.clear();
  // Only ranks that accumulated gradients in the current step have counted it.
  host_communicator_.broadcast({&step_, 1, comm::DataType::i64}, 0, "the number of steps")->wait();
  last_sample_.reset();
}

// A graph that was recorded before one or several changes still leads to the old accumulators, whose
// gradients would not be summed. The old hooks refuse such a backward.
void Reducer::put_hooks_on(const std::vector<NamedTensor>& trained) {
  std::vector<torch::Tensor> tensors;
  for (const auto& parameter : trained) tensors.push_back(parameter.tensor);
  const auto accumulators = accumulators_of(tensors);
  if (hooks_) outdated_hooks_.push_back(std::move(hooks_));
  hooks_ = std::make_unique<GradientHooks>(
      accumulators, [this, trained, accumulators, attachment = ++attachments_](std::size_t i) {
        if (attachment != attachments_) return refuse_outdated(trained[i], accumulators[i]);
        on_gradient(i);
      });
}

void Reducer::refuse_outdated(const NamedTensor& parameter,
                              const torch_compat::NodeHandle& accumulator) const {
  const auto& accumulators = hooks_->accumulators();
  if (std::find(accumulators.begin(), accumulators.end(), accumulator) != accumulators.end()) return;
  const auto& [name, tensor] = parameter;
  if (std::any_of(parameters().begin(), parameters().end(),
                  [&tensor = tensor](const NamedTensor& known) { return known.tensor.is_same(tensor); })) {
    fail_usage(
        "this backward belongs to a forward that ran before the model was changed (parameter '{}' was loaded or converted); call forward again",
        name);
  }
  fail_usage(
      "parameter '{}' got a gradient, but it was frozen or is no longer registered; if forward ran before the model was changed, call it again; if forward still uses the parameter, register it again",
      name);
}

}  // namespace lockstep::ddp
