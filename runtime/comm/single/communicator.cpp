#include "runtime/comm/single/communicator.h"

#include <cstring>

#include "common/error.h"
#include "runtime/comm/operation.h"
#include "runtime/comm/reduction.h"

namespace lockstep::comm {
namespace {

class SingleCommunicator : public Communicator {
 public:
  explicit SingleCommunicator(std::string node_name) : Communicator({.node_name = std::move(node_name)}) {}

  std::string_view name() const override { return "single"; }

  WorkHandle all_reduce(Buffer buffer, std::string_view label, ReduceOptions options) override {
    return now(describe("all_reduce", label, buffer.bytes()), [&] {
      const void* const inputs[] = {buffer.data};
      const ScaledOp scaled = scaled_op_of(options, 1);
      reduce(inputs, buffer.data, buffer.count, buffer.type, scaled);
      if (options.then) options.then();
    });
  }

  WorkHandle broadcast(Buffer buffer, int root, std::string_view label) override {
    return now(describe("broadcast", label, buffer.bytes()), [root] {
      if (root != 0) fail_usage("there is no rank {}; the only rank is 0", root);
    });
  }

  WorkHandle all_gather(Buffer mine, void* all, std::string_view label) override {
    return now(describe("all_gather", label, mine.bytes()), [&] {
      if (mine.bytes() > 0) std::memmove(all, mine.data, mine.bytes());
    });
  }

  WorkHandle reduce_scatter(void* all, Buffer mine, std::string_view label, ReduceOptions options) override {
    return now(describe("reduce_scatter", label, mine.bytes()), [&] {
      const void* const inputs[] = {all};
      const ScaledOp scaled = scaled_op_of(options, 1);
      reduce(inputs, mine.data, mine.count, mine.type, scaled);
      if (options.then) options.then();
    });
  }

  WorkHandle exchange(std::span<const PeerMessage> sends, std::span<const PeerMessage> receives,
                      std::string_view label) override {
    check_peers(sends);
    check_peers(receives);
    return now(describe("exchange", label, 0), [] {});
  }

  WorkHandle barrier(std::string_view label) override {
    return now(describe("barrier", label, 0), [] {});
  }

  std::unique_ptr<Communicator> split(int color, std::string_view /*name*/) override {
    return color < 0 ? nullptr : make_single_communicator(place().node_name);
  }

 private:
  static WorkHandle now(std::string name, const std::function<void()>& body) {
    auto operation = std::make_shared<Operation>(std::move(name));
    operation->run(body);
    return operation;
  }
};

}  // namespace

std::unique_ptr<Communicator> make_single_communicator(std::string node_name) {
  return std::make_unique<SingleCommunicator>(std::move(node_name));
}

}  // namespace lockstep::comm
