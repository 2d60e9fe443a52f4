// Fuzzes the parser of lockstep.conf, which every sbatch, srun and slurmstepd runs, and the parsers of a plan
// of lockstep-pin and of a list of GPUs, which tasks run. The text up to the first zero byte is the file; the
// rest is the plan and the list.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "common/leaf/options/config.h"
#include "plugin/spank/pinning/pinning.h"
#include "plugin/spank/process/report.h"

namespace lockstep::spank {
void log(const std::string& /*text*/) noexcept {
}  // the fuzzer has no daemon's log
}  // namespace lockstep::spank

using namespace lockstep;         // NOLINT: a program
using namespace lockstep::spank;  // NOLINT: a program

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void read_file(std::string_view text) {
  for (const char* partition : {"", "gpu"}) {
    try {
      const Config config = parse_config(text, "f", partition);
      require(config.cache.empty() || config.cache.starts_with('/'));
      require(config.first_port <= config.last_port && config.keep >= 0 && config.wait > 0);
      for (const OptionRow& row : option_table()) {
        const auto& value = config.defaults.at(static_cast<std::size_t>(row.option));
        Settings settings;
        if (value) apply(row.option, *value, settings);
        try {
          check_allowed(config, row.option, settings, *partition != '\0');
        } catch (const Error&) {
          continue;
        }
      }
    } catch (const Error& error) {
      require(std::string_view(error.what()).starts_with("f:"));
    }
  }
}

void read_plan(const std::string& text) {
  try {
    require(parse_plan(text, 2).size() == 2);
  } catch (const Error&) {
    return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::size_t end = all.find('\0');
  read_file(all.substr(0, end));
  if (end == std::string_view::npos) return 0;
  const std::string rest(all.substr(end + 1));
  read_plan(rest);
  const std::size_t half = rest.size() / 2;
  list_for_plan({gpus_of_task(rest.substr(0, half), rest.substr(half)), split_list(rest)});
  return 0;
}
