// A job that saves and loads checkpoints on a file system that is slow, stuck or full: checkpoint_job HOW FOLDER.
// checkpoint_job_test starts it under mpirun.
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>

#include "common/file_system.h"
#include "common/process.h"
#include "runtime/lockstep.h"

namespace {

using namespace lockstep;

// The file of the parameters has eight pieces of 4 MiB. Only rank 0 writes and reads it.
constexpr std::int64_t kParameters = std::int64_t{8} << 20;

class BadDisk : public FileSystem {
 public:
  BadDisk(std::string how, int rank) : how_(std::move(how)), rank_(rank) {}
  ssize_t call(const FileCall& call) override {
    const bool writes = call.kind == Kind::write || call.kind == Kind::fallocate;
    if (how_ == "full" && rank_ == 1 && writes) {
      errno = ENOSPC;
      return -1;
    }
    const bool bytes = call.kind == Kind::write || call.kind == Kind::read;
    if (bytes && std::string(call.path).ends_with("model.safetensors")) {
      if (how_ == "slow") std::this_thread::sleep_for(std::chrono::milliseconds(400));
      if (how_ == (call.kind == Kind::write ? "stuck-writing" : "stuck-reading") && ++calls_ == 3) {
        for (;;) ::pause();
      }
    }
    return FileSystem::call(call);
  }

 private:
  std::string how_;
  int rank_;
  std::atomic<int> calls_ = 0;
};

// As a trainer in another file might end a job whose time is over: not in main.
void save_and_exit(Checkpointer& checkpointer, StopSignal& stop, std::int64_t step) {
  checkpointer.save(step);
  checkpointer.wait();
  stop.exit();
}

void run(World& world, const std::string& how, const std::string& folder, const char* program) {
  BadDisk disk(how, world.rank());
  torch::nn::Linear model(torch::nn::LinearOptions(1024, kParameters / 1024).bias(false));
  if (how != "load") {
    Checkpointer checkpointer(world, folder, {.file_system = &disk});
    checkpointer.add("model", *model);
    if (how == "shared" && world.rank() == 0) {
      const auto other = run_process({"env", "-i", program, "well", folder});
      std::printf("the other one: exit %d: %s", other.exit_code, other.error.c_str());
    }
    if (how == "full") {
      try {
        checkpointer.save(1);
        checkpointer.wait();
      } catch (const Error& error) {
        if (world.rank() == 0) std::printf("save: %s\n", error.what());
      }
      return;
    }
    checkpointer.save(1);
    if (how == "stop") {
      StopSignal stop(world);
      if (world.rank() == 1) ::raise(SIGTERM);
      for (std::int64_t step = 2; step < 10; ++step)
        if (stop.poll()) save_and_exit(checkpointer, stop, step);
    }
  }  // waits
  Checkpointer checkpointer(world, folder, {.file_system = &disk});
  checkpointer.add("model", *model);
  const auto step = checkpointer.load_latest();
  if (world.rank() == 0) std::printf("loaded %d\n", static_cast<int>(step.value_or(-1)));
}

}  // namespace

int main(int argc, char** argv) {
  World world(argc, argv);
  run(world, argc > 1 ? argv[1] : "well", argc > 2 ? argv[2] : "", argv[0]);
}
