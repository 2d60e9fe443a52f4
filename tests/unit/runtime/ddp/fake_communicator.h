// A communicator whose operations do nothing and end at once, to derive the tests' communicators from.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "runtime/comm/single/communicator.h"

namespace lockstep::testing {

class FakeCommunicator : public comm::Communicator {
 public:
  explicit FakeCommunicator(comm::RankInfo place) : Communicator(std::move(place)) {}
  std::string_view name() const override { return "fake"; }
  comm::WorkHandle all_reduce(comm::Buffer /*buffer*/, std::string_view label,
                              comm::ReduceOptions /*options*/) override {
    return start(label);
  }
  comm::WorkHandle broadcast(comm::Buffer /*buffer*/, int /*root*/, std::string_view label) override {
    return start(label);
  }
  comm::WorkHandle all_gather(comm::Buffer /*mine*/, void* /*all*/, std::string_view label) override {
    return start(label);
  }
  comm::WorkHandle reduce_scatter(void* /*all*/, comm::Buffer /*mine*/, std::string_view label,
                                  comm::ReduceOptions /*options*/) override {
    return start(label);
  }
  comm::WorkHandle exchange(std::span<const comm::PeerMessage> /*sends*/,
                            std::span<const comm::PeerMessage> /*receives*/,
                            std::string_view label) override {
    return start(label);
  }
  comm::WorkHandle barrier(std::string_view label) override { return start(label); }
  std::unique_ptr<comm::Communicator> split(int /*color*/, std::string_view /*name*/) override {
    return nullptr;
  }

 protected:
  virtual comm::WorkHandle start(std::string_view label) { return alone_->barrier(label); }

 private:
  std::unique_ptr<comm::Communicator> alone_ = comm::make_single_communicator("here");
};

}  // namespace lockstep::testing
