// Reads a pack and writes a record, without LibTorch and MPI.
#include <runtime/profile/step_timer.h>
#include <staging/pack/reader.h>

#include <cstdio>
#include <filesystem>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const auto pack = lockstep::pack::open(argv[1]);
  lockstep::profile::StepTimer timer({}, {.record = true, .folder = argv[2]});
  timer.begin_step();
  timer.end_step({.tokens = pack->tokens(0), .samples = 1, .padding = 0});
  std::filesystem::copy_file(timer.file(), std::filesystem::path(argv[2]) / "copy");  // timer removes its own
  return 0;
}
