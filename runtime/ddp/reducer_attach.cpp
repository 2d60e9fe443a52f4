// Reducer: puts hooks on the parameters, at construction and after the model was changed.
#include <algorithm>
#include <numeric>

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

// The current step needs such a gradient, so it cannot just be dropped.
bool Reducer::accumulated_in_another_shape(const torch::Tensor& tensor) const {
  const torch::Tensor& gradient = tensor.grad();
  return gradient.defined() && gradient.sizes() != tensor.sizes() &&
         std::any_of(parameters_.begin(), parameters_.end(),
                     [&](const Parameter& known) { return known.used && known.tensor.is_same(tensor); });
}

void Reducer::attach(const std::vector<NamedTensor>& all) {
  const torch::NoGradGuard no_grad;
  std::vector<Parameter> parameters;
  std::vector<NamedTensor> trained;
  std::vector<torch::Tensor> tensors;
  for (const auto& [name, tensor] : all) {
    if (!tensor.requires_grad()) continue;
    static_cast<void>(data_type_of(tensor.scalar_type(), fmt::format("parameter '{}'", name)));
    if (accumulated_in_another_shape(tensor)) {
      fail_usage(
          "parameter '{}' has another shape than the gradient accumulated for it; change the model between optimizer steps, or call discard() first",
          name);
    }
    const auto before =
        std::find_if(parameters_.begin(), parameters_.end(),
                     [&tensor = tensor](const Parameter& known) { return known.tensor.is_same(tensor); });
    const bool used = before != parameters_.end() && before->used;
    parameters.push_back({.name = name, .tensor = tensor, .used = used});
    tensors.push_back(tensor);
    trained.push_back({name, tensor});
  }
  if (parameters.empty()) fail_usage("the model has no parameter that requires a gradient");
  for (const auto& tensor : tensors) fit_gradient(tensor);
  put_hooks_on(tensors);
  parameters_ = std::move(parameters);
  replica_check_.set_parameters(std::move(trained));

  // As before the first synchronised backward.
  learning_ = true;
  graph_walked_ = usage_settled_ = false;
  layout_ = Layout::assigned;
  // Only ranks that accumulated gradients in the current step have counted it.
  host_communicator_.broadcast({&step_, 1, comm::DataType::i64}, 0, "the number of steps")->wait();
  last_sample_.reset();
  // Gradients arrive roughly from the last layer to the first. After the first step rebuild_once() uses the
  // real order.
  order_.resize(parameters_.size());
  std::iota(order_.rbegin(), order_.rend(), std::size_t{0});
  plan(assign(order_));
}

// A graph that was recorded before one or several changes still leads to the old accumulators, whose
// gradients would not be summed. Hooks on those accumulators refuse such a backward.
void Reducer::put_hooks_on(const std::vector<torch::Tensor>& tensors) {
  const auto accumulators = accumulators_of(tensors);
  std::vector<torch_compat::NodeHandle> outdated;
  std::vector<std::pair<std::string, torch::Tensor>> outdated_parameters;
  const auto add = [&](const torch_compat::NodeHandle& accumulator, const std::string& name,
                       const torch::Tensor& tensor) {
    if (std::find(accumulators.begin(), accumulators.end(), accumulator) != accumulators.end()) return;
    outdated.push_back(accumulator);
    outdated_parameters.emplace_back(name, tensor);
  };
  for (std::size_t i = 0; i < outdated_parameters_.size(); ++i)
    add(outdated_hooks_->accumulators()[i], outdated_parameters_[i].first, outdated_parameters_[i].second);
  for (std::size_t i = 0; hooks_ && i < parameters_.size(); ++i)
    add(hooks_->accumulators()[i], parameters_[i].name, parameters_[i].tensor);
  outdated_parameters_ = std::move(outdated_parameters);
  outdated_hooks_ = std::make_unique<GradientHooks>(outdated, [this](std::size_t i) { refuse_outdated(i); });
  hooks_ = std::make_unique<GradientHooks>(accumulators, [this](std::size_t index) { on_gradient(index); });
}

void Reducer::refuse_outdated(std::size_t index) const {
  const auto& [name, tensor] = outdated_parameters_[index];
  if (std::any_of(parameters_.begin(), parameters_.end(),
                  [&tensor = tensor](const Parameter& known) { return known.tensor.is_same(tensor); })) {
    fail_usage(
        "this backward belongs to a forward that ran before the model was changed (parameter '{}' was loaded or converted); call forward again",
        name);
  }
  fail_usage(
      "parameter '{}' got a gradient, but it was frozen or is no longer registered; if forward ran before the model was changed, call it again; if forward still uses the parameter, register it again",
      name);
}

}  // namespace lockstep::ddp
