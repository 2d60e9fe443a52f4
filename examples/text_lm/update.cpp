#include "examples/text_lm/update.h"

#include <type_traits>

namespace lockstep::text_lm {

Update::Update(Ddp& ddp, const LanguageModel& model, const Options& options)
    : model_(model), clip_(options.clip) {
  const auto groups = decay_groups(*model, torch::optim::AdamWOptions(options.learning_rate)
                                               .betas({0.9, 0.95})
                                               .weight_decay(options.weight_decay));
  // The fused optimizers compute in host memory only.
  const bool fused = options.optimizer != "libtorch" && model->parameters().front().is_cpu();
  const auto shard = [&]<typename Optimizer>(std::type_identity<Optimizer>) {
    const auto whole = std::make_shared<DistributedOptimizer<Optimizer>>(ddp, groups);
    sharded_ = whole;
    optimizer_ = {whole, &whole->local()};
  };
  if (options.optimizer == "distributed") {
    if (fused)
      shard(std::type_identity<FusedAdamW>());
    else
      shard(std::type_identity<torch::optim::AdamW>());
  } else if (fused) {
    optimizer_ = std::make_shared<FusedAdamW>(groups);
  } else {
    optimizer_ = std::make_shared<torch::optim::AdamW>(groups);
  }
}

void Update::apply() {
  if (sharded_) {
    sharded_->clip_grad_norm(clip_);
    sharded_->step();
    sharded_->zero_grad();
  } else {
    clip_grad_norm(model_->parameters(), clip_);
    optimizer_->step();
    optimizer_->zero_grad();
  }
}

void Update::add_to(Checkpointer& checkpointer) {
  if (sharded_)
    checkpointer.add("optimizer", *sharded_);
  else
    checkpointer.add("optimizer", *optimizer_);
}

}  // namespace lockstep::text_lm
