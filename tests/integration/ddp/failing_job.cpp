// A training job in which the last rank fails in the way named on the command line. failure_test starts it.
#include <string>

#include "runtime/ddp/collectives.h"
#include "runtime/ddp/distributed_data_parallel.h"

namespace {

void train(lockstep::World& world, const std::string& how) {
  const bool wrong = world.rank() == world.size() - 1;
  torch::manual_seed(1);
  const torch::nn::Linear model(4, 1);
  lockstep::DistributedDataParallel ddp(model, world);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  for (int step = 1; step <= 5; ++step) {
    const int micro_batches = how == "ddp-well" ? 1 + world.rank() : 2;
    for (int i = 1; i <= micro_batches; ++i) {
      const bool unsynchronised = wrong && step == 2 && how.starts_with("ddp-does-not-synchronise");
      const auto hold = ddp.no_sync_unless(i == micro_batches && !unsynchronised);
      const auto loss = ddp(torch::ones({3, 4})).square().sum();
      if (how.ends_with("-over-ranks")) {
        loss.backward();
      } else {
        ddp.backward(loss, 3);
      }
    }
    const bool skips = wrong && step == 2 && how.starts_with("ddp-skips-a-step");
    if (!skips) optimizer.step();
    optimizer.zero_grad();
  }
}

void reduce(lockstep::World& world, const std::string& how) {
  const bool wrong = world.rank() == world.size() - 1;
  const auto type = wrong && how == "ddp-other-type" ? torch::kLong : torch::kDouble;
  const auto tensor = torch::ones(6, type).view(wrong && how == "ddp-other-shape" ? torch::IntArrayRef{3, 2}
                                                                                  : torch::IntArrayRef{2, 3});
  lockstep::all_reduce(world, tensor, lockstep::ReduceOp::sum, "hits");
}

void join(lockstep::World& world) {
  const bool wrong = world.rank() == world.size() - 1;
  const torch::nn::Linear model(4, 1);
  lockstep::DistributedDataParallel ddp(model, world);
  ddp.join([&] { ddp.backward(ddp(torch::ones({3, 4})).sum()); }, {.divide_by_initial_world_size = !wrong});
}

}  // namespace

int main(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "ddp-well";
  lockstep::World world(argc, argv);
  if (how == "ddp-other-join") {
    join(world);
  } else if (how.starts_with("ddp-other")) {
    reduce(world, how);
  } else {
    train(world, how);
  }
  return 0;
}
