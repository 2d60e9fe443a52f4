#include "examples/text_lm/agreement.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "common/error.h"

namespace lockstep::text_lm {

bool done_on_all_ranks(World& world, const std::function<void()>& work) {
  std::string problem;
  std::uint8_t failed = 0;
  try {
    work();
  } catch (const std::exception& error) {
    problem = error.what();
    problem = problem.substr(0, problem.find('\n'));  // LibTorch appends a stack of frames
    failed = 1;
  }
  std::vector<std::uint8_t> all(static_cast<std::size_t>(world.size()));
  world.communicator().all_gather({&failed, 1, comm::DataType::u8}, all.data(), "start")->wait();
  const auto first = std::find(all.begin(), all.end(), 1);
  if (first == all.end()) return true;
  if (first - all.begin() == world.rank()) {
    fmt::print(stderr, "text_lm: rank {} on {}: {}\n", world.rank(), world.node_name(), problem);
  }
  return false;
}

}  // namespace lockstep::text_lm
