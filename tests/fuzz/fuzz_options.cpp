// Fuzzes the parser of the options of sbatch, salloc and srun, which also runs as root in slurmstepd, with
// text that came over the network. The first byte selects the option; the rest is its value.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "common/leaf/options/options.h"
#include "plugin/spank/process/report.h"
#include "plugin/spank/staging/sources.h"
#include "plugin/spank/staging/srun_link.h"

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

void read_option(Option option, std::string_view value) {
  Settings settings;
  try {
    apply(option, value, settings);
  } catch (const Error& error) {
    require(std::string_view(error.what()).size() < 500);
    return;
  }
  const std::vector<std::string_view> words = words_of(option);
  require(option == Option::stage ||
          std::find(words.begin(), words.end(), word_of(option, settings)) != words.end());
  require(split_sources(join_sources(settings.sources)) == settings.sources);
  for (const std::string& source : settings.sources) {
    const std::string absolute = absolute_source(source, "/home");
    require(absolute.starts_with('/') && absolute_source(absolute, "/") == absolute);
  }
  try {
    check_names(settings.sources, {"/home"});
  } catch (const Error&) {
    return;
  }
}

void read_link(std::string_view value) {
  try {
    const SrunLink link = SrunLink::decode(std::string(value));
    require(SrunLink::decode(link.encode()).encode() == link.encode());
  } catch (const Error&) {
    return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view value(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::size_t which = data[0] % (kOptions + 1);
  if (which == kOptions) {
    read_link(value);
  } else {
    read_option(static_cast<Option>(which), value);
  }
  return 0;
}
