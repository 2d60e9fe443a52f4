#include <map>

#include "runtime/ddp/flat_bucket.h"
#include "runtime/ddp/hooks/compression.h"

namespace lockstep {
namespace {

class CompressHook : public CommHook {
 public:
  explicit CompressHook(torch::ScalarType type) : type_(type) {}

  CommFuture start(GradBucket& bucket, comm::Communicator& communicator) override {
    const torch::NoGradGuard no_grad;
    if (bucket.buffer().scalar_type() == type_) {
      return {{communicator.all_reduce(bucket.memory(), "gradients in 16 bits", average())}, {}};
    }
    ddp::FlatBucket& compressed = compressed_of(bucket, communicator);
    compressed.view(0).copy_(bucket.buffer());
    auto options = average();
    options.keep = compressed.memory();
    return {{communicator.all_reduce(compressed.buffer(), "gradients in 16 bits", std::move(options))},
            [from = compressed.view(0), into = bucket.buffer()]() -> CommFuture {
              into.copy_(from);
              return {};
            }};
  }

  void buckets_changed() override { compressed_.clear(); }

 private:
  static comm::ReduceOptions average() { return {.op = comm::ReduceOp::average}; }

  // The memory is kept from step to step.
  ddp::FlatBucket& compressed_of(GradBucket& bucket, comm::Communicator& communicator) {
    auto found = compressed_.find(bucket.index());
    if (found == compressed_.end()) {
      const auto like = torch::empty_like(bucket.buffer(), bucket.buffer().options().dtype(type_));
      found =
          compressed_.emplace(bucket.index(), ddp::FlatBucket(communicator, "gradients in 16 bits", {like}))
              .first;
    }
    return found->second;
  }

  torch::ScalarType type_;
  std::map<std::size_t, ddp::FlatBucket> compressed_;
};

}  // namespace

std::shared_ptr<CommHook> fp16_compress_hook() {
  return std::make_shared<CompressHook>(torch::kHalf);
}

std::shared_ptr<CommHook> bf16_compress_hook() {
  return std::make_shared<CompressHook>(torch::kBFloat16);
}

}  // namespace lockstep
