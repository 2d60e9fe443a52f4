#include "runtime/train/sync_batch_norm.h"

#include <fmt/ranges.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "common/error.h"
#include "runtime/ddp/device.h"
#include "runtime/ddp/flat_bucket.h"

namespace lockstep {
namespace {

using torch::Tensor;

// All dimensions but the channels'.
std::vector<std::int64_t> reduced_dimensions(const Tensor& input) {
  std::vector<std::int64_t> dimensions = {0};
  for (std::int64_t i = 2; i < input.dim(); ++i) dimensions.push_back(i);
  return dimensions;
}

// A tensor by channel in a shape that broadcasts over the input.
Tensor by_channel(const Tensor& values, const Tensor& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = -1;
  return values.view(shape);
}

comm::DataType data_type_of(const Tensor& tensor) {
  return ddp::data_type_of(tensor.scalar_type(), "SyncBatchNorm");
}

// Ranks compare it on the CPU.
std::string label_of(const char* what, const Tensor& tensor) {
  return fmt::format("{} ({} [{}])", what, c10::toString(tensor.scalar_type()), tensor.numel());
}

// Not all_gather() of collectives.h: on a GPU its host waits for the other ranks.
Tensor gather(World& world, const Tensor& mine) {
  const Tensor all = torch::empty({world.size(), mine.numel()}, mine.options());
  ddp::communicator_for(world, mine.device())
      .all_gather({mine.data_ptr(), static_cast<std::size_t>(mine.numel()), data_type_of(mine)},
                  all.data_ptr(), label_of("batch statistics", mine))
      ->wait();
  return all;
}

struct Statistics {
  Tensor mean;
  Tensor variance;  // biased
  Tensor count;     // values per channel
};

// Means and sums of squared deviations are combined as by Chan, Golub and LeVeque (1979), which does not
// cancel as a difference of sums would. Half types are summed as float.
Statistics statistics_of_all(World& world, const Tensor& input, torch::ScalarType type) {
  const auto dimensions = reduced_dimensions(input);
  const std::int64_t channels = input.size(1);
  const std::int64_t count = channels == 0 ? 0 : input.numel() / channels;
  const Tensor values = input.to(type);
  Tensor mine = torch::zeros({2 * channels + 1}, values.options());
  if (count > 0) {
    const Tensor mean = values.mean(dimensions);
    mine.slice(0, 0, channels).copy_(mean);
    mine.slice(0, channels, 2 * channels).copy_((values - by_channel(mean, input)).square().sum(dimensions));
  }
  mine[2 * channels] = count;
  const Tensor all = gather(world, mine);
  const Tensor means = all.slice(1, 0, channels);
  const Tensor counts = all.slice(1, 2 * channels);
  const Tensor total = counts.sum();
  Statistics result;
  result.count = total;
  // Only then can the total be too small, so a GPU need not be asked otherwise.
  if (count < 2 && total.item<double>() < 2)
    fail_usage("SyncBatchNorm: all ranks together have {} values per channel; statistics need at least 2",
               total.item<std::int64_t>());
  result.mean = (means * counts).sum(0) / total;
  const Tensor deviations = all.slice(1, channels, 2 * channels) + counts * (means - result.mean).square();
  result.variance = deviations.sum(0) / total;
  return result;
}

// Autograd takes no undefined tensors as inputs.
using OptionalTensor = torch::optional<Tensor>;

OptionalTensor if_defined(const Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : OptionalTensor();
}

std::int64_t handle_of(World& world) {
  return reinterpret_cast<std::int64_t>(&world);
}

World& world_of(torch::autograd::AutogradContext& context) {
  return *reinterpret_cast<World*>(context.saved_data["world"].toInt());  // NOLINT(performance-no-int-to-ptr)
}

// The sum over the ranks, which autograd can differentiate any number of times: every rank's loss depends on
// each rank's summand, so the summand's gradient is the sum of the ranks' gradients.
struct SumOverRanks : torch::autograd::Function<SumOverRanks> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& mine, World* world) {
    context->saved_data["world"] = handle_of(*world);
    Tensor sum = mine.detach().clone(torch::MemoryFormat::Contiguous);
    ddp::communicator_for(*world, sum.device())
        .all_reduce({sum.data_ptr(), static_cast<std::size_t>(sum.numel()), data_type_of(sum)},
                    label_of("batch statistics in backward", sum))
        ->wait();
    return sum;
  }

  static std::vector<Tensor> backward(torch::autograd::AutogradContext* context,
                                      std::vector<Tensor> gradients) {
    return {apply(gradients[0], &world_of(*context)), Tensor()};
  }
};

struct Normalize : torch::autograd::Function<Normalize> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& input,
                        const OptionalTensor& optional_weight, const OptionalTensor& optional_bias,
                        const Statistics& statistics, double eps, World* world) {
    const Tensor weight = optional_weight.value_or(Tensor());
    const Tensor bias = optional_bias.value_or(Tensor());
    const Tensor inverse = (statistics.variance + eps).rsqrt();
    context->save_for_backward({input, weight, statistics.mean, inverse, statistics.count});
    context->saved_data["eps"] = eps;
    context->saved_data["world"] = handle_of(*world);
    Tensor scale = inverse;
    if (weight.defined()) scale = scale * weight;
    Tensor shift = -statistics.mean * scale;
    if (bias.defined()) shift = shift + bias;
    return (input * by_channel(scale, input) + by_channel(shift, input)).to(input.scalar_type());
  }

  static std::vector<Tensor> backward(torch::autograd::AutogradContext* context,
                                      std::vector<Tensor> gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor& input = saved[0];
    const Tensor& weight = saved[1];
    Tensor mean = saved[2];
    Tensor inverse = saved[3];
    World& world = world_of(*context);
    const auto dimensions = reduced_dimensions(input);
    const std::int64_t channels = input.size(1);
    const Tensor& count = saved[4];
    const Tensor values = input.to(mean.scalar_type());
    if (torch::GradMode::is_enabled()) {  // create_graph: the statistics depend on the input of all ranks
      mean = SumOverRanks::apply(values.sum(dimensions), &world) / count;
      const Tensor squares = (values - by_channel(mean, input)).square().sum(dimensions);
      inverse =
          (SumOverRanks::apply(squares, &world) / count + context->saved_data["eps"].toDouble()).rsqrt();
    }
    const Tensor gradient = gradients[0].to(mean.scalar_type());
    const Tensor normalized = (values - by_channel(mean, input)) * by_channel(inverse, input);
    const Tensor of_bias = gradient.sum(dimensions);
    const Tensor of_weight = (gradient * normalized).sum(dimensions);
    // This rank's own gradients of weight and bias: DistributedDataParallel sums them as it does all others.
    const Tensor sums = SumOverRanks::apply(torch::cat({of_bias, of_weight}), &world);
    const Tensor mean_gradient = sums.slice(0, 0, channels) / count;
    const Tensor mean_product = sums.slice(0, channels) / count;
    Tensor scale = inverse;
    if (weight.defined()) scale = scale * weight;
    const Tensor of_input =
        (gradient - by_channel(mean_gradient, input) - normalized * by_channel(mean_product, input)) *
        by_channel(scale, input);
    return {of_input.to(input.scalar_type()),
            weight.defined() ? of_weight.to(weight.scalar_type()) : Tensor(),
            weight.defined() ? of_bias.to(weight.scalar_type()) : Tensor(),
            Tensor(),
            Tensor(),
            Tensor()};
  }
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(World& world, const torch::nn::BatchNormOptions& batch_norm_options)
    : NormImplBase(batch_norm_options), world_(&world) {
}

void SyncBatchNormImpl::_check_input_dim(const Tensor& input) {
  if (input.dim() < 2 || input.size(1) != options.num_features())
    fail_usage("SyncBatchNorm: the input has shape {}; it must be (N, {}, ...)",
               fmt::join(input.sizes(), " x "), options.num_features());
  if (!input.is_floating_point())
    fail_usage("SyncBatchNorm: the input is of type {}; it must be floating point",
               c10::toString(input.scalar_type()));
}

Tensor SyncBatchNormImpl::forward(const Tensor& input) {
  _check_input_dim(input);
  if (!is_training()) {
    return torch::batch_norm(input, weight, bias, running_mean, running_var,
                             /*training=*/!options.track_running_stats(), 0, options.eps(),
                             /*cudnn_enabled=*/true);
  }
  const bool half = input.scalar_type() == torch::kHalf || input.scalar_type() == torch::kBFloat16;
  Statistics statistics;
  {
    const torch::NoGradGuard no_grad;
    statistics = statistics_of_all(*world_, input, half ? torch::kFloat : input.scalar_type());
    if (options.track_running_stats()) {
      num_batches_tracked += 1;
      const Tensor unbiased = statistics.variance * (statistics.count / (statistics.count - 1));
      const auto move = [&](const Tensor& running, const Tensor& value) {
        const Tensor target = value.to(running.scalar_type());
        if (options.momentum()) {
          running.lerp_(target, *options.momentum());
        } else {  // the mean of all batches so far
          running.lerp_(target,
                        num_batches_tracked.to(torch::kDouble).reciprocal().to(running.scalar_type()));
        }
      };
      move(running_mean, statistics.mean);
      move(running_var, unbiased);
    }
  }
  return Normalize::apply(input, if_defined(weight), if_defined(bias), statistics, options.eps(), world_);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "lockstep::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps() << ")";
}

namespace {

template <typename Old>
std::shared_ptr<SyncBatchNormImpl> converted(World& world, torch::nn::Module& module) {
  auto* const old = module.as<Old>();
  if (old == nullptr) return nullptr;
  auto made = std::make_shared<SyncBatchNormImpl>(world, old->options);
  const torch::NoGradGuard no_grad;
  auto parameters = made->named_parameters(false);
  for (const auto& entry : old->named_parameters(false)) {
    parameters[entry.key()].set_data(entry.value().detach());
    parameters[entry.key()].requires_grad_(entry.value().requires_grad());
  }
  auto buffers = made->named_buffers(false);
  for (const auto& entry : old->named_buffers(false)) buffers[entry.key()].set_data(entry.value());
  made->train(old->is_training());
  return made;
}

std::shared_ptr<SyncBatchNormImpl> converted_any(World& world, torch::nn::Module& module) {
  if (auto made = converted<torch::nn::BatchNorm1dImpl>(world, module)) return made;
  if (auto made = converted<torch::nn::BatchNorm2dImpl>(world, module)) return made;
  return converted<torch::nn::BatchNorm3dImpl>(world, module);
}

void convert_children(World& world, torch::nn::Module& module, const std::string& prefix) {
  auto* const sequential = module.as<torch::nn::SequentialImpl>();
  std::size_t index = 0;
  for (const auto& child : module.named_children()) {
    const std::string name = prefix + child.key();
    const auto made = converted_any(world, *child.value());
    if (made == nullptr) {
      convert_children(world, *child.value(), name + ".");
    } else if (sequential == nullptr) {
      fail_usage(
          "convert_sync_batch_norm: '{}' is a member of a module class, which cannot be exchanged; declare it as lockstep::SyncBatchNorm",
          name);
    } else {
      *(sequential->begin() + static_cast<std::ptrdiff_t>(index)) = torch::nn::AnyModule(made);
      sequential->replace_module(child.key(), made);
    }
    ++index;
  }
}

}  // namespace

void convert_sync_batch_norm(World& world, torch::nn::Module& module) {
  convert_children(world, module, "");
}

}  // namespace lockstep
