// Prints the plugin's options as a tool's --help and --version do, for help2man: the plugin itself runs only inside
// Slurm. Not installed.
#include <cstdio>
#include <string_view>

#include "common/leaf/options/options.h"

namespace {

void print_help() {
  std::puts(R"(Options that Lockstep's plugin adds to sbatch, salloc and srun
Usage: srun [OPTIONS] COMMAND

srun --help lists the options too, with the prefix that the site may have set. The file lockstep.conf may
change their defaults and forbid values.

Options:)");
  for (const lockstep::OptionRow& row : lockstep::option_table()) {
    std::string_view usage = row.usage;
    constexpr std::string_view kOurs = "lockstep: ";
    if (usage.starts_with(kOurs)) usage.remove_prefix(kOurs.size());
    std::printf("  --%s=%s\n                              %.*s\n", row.name, row.arguments,
                static_cast<int>(usage.size()), usage.data());
  }
  std::puts("\nEnvironment:\nThese variables have the effect of the options.\n");
  for (const lockstep::OptionRow& row : lockstep::option_table())
    std::printf("  %s\n                              --%s\n", row.variable, row.name);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--version") {
    std::puts("lockstep-plugin " LOCKSTEP_VERSION);
  } else {
    print_help();
  }
  return 0;
}
