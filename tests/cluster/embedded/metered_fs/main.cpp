// metered-fs: the embedded cluster's shared file system and its meter.
#include <fmt/format.h>

#include <optional>

#include "common/tool.h"
#include "common/units.h"
#include "tests/cluster/embedded/metered_fs/file_system.h"
#include "tests/cluster/embedded/metered_fs/meter.h"

namespace lockstep::metered_fs {
namespace {

void print_table(const nlohmann::json& meter) {
  fmt::print("{:<8} {:>12} {:>12} {:>10} {:>10} {:>10} {:>10} {:>10}\n", "machine", "read", "written",
             "reads", "writes", "opens", "lookups", "getattrs");
  for (const auto& [name, counters] : meter["machines"].items()) {
    const auto value = [&counters = counters](const char* field) {
      return counters[field].get<std::uint64_t>();
    };
    fmt::print("{:<8} {:>12} {:>12} {:>10} {:>10} {:>10} {:>10} {:>10}\n", name,
               format_bytes(value("bytes_read")), format_bytes(value("bytes_written")), value("reads"),
               value("writes"), value("opens"), value("lookups"), value("getattrs"));
  }
}

int run(int argc, char** argv) {
  Tool tool("metered-fs", "A pass-through file system that counts operations and can be slowed down");

  std::string backing;
  std::string mount_point;
  std::string meter_file;
  std::string machine;
  CLI::App& mount = tool.verb("mount", "Mount a folder and serve it until it is unmounted", [&] {
    Meter meter(meter_file);
    serve(backing, mount_point, meter, meter.machine(machine));
  });
  mount.add_option("backing", backing, "The folder with the files")->required();
  mount.add_option("mount-point", mount_point, "The folder in which they appear")->required();
  mount.add_option("--meter", meter_file, "The meter's file")->required();
  mount.add_option("--machine", machine, "The machine whose counters are used")->required();

  bool create = false;
  bool reset = false;
  std::optional<std::string> bandwidth;
  std::optional<double> latency;
  CLI::App& show = tool.verb("meter", "Show or change a meter", [&] {
    if (create) Meter::create(meter_file);
    Meter meter(meter_file);
    if (bandwidth) meter.set_bandwidth(parse_bytes(*bandwidth));
    if (latency) meter.set_latency(*latency / 1000);
    if (reset) meter.reset();
    if (tool.json()) {
      Tool::print(meter.to_json());
    } else if (!create && !reset && !bandwidth && !latency) {
      print_table(meter.to_json());
    }
  });
  show.add_option("file", meter_file, "The meter's file")->required();
  show.add_flag("--create", create, "Make the file, with no limits");
  show.add_flag("--reset", reset, "Set the counters to 0");
  show.add_option("--bandwidth", bandwidth, "Bytes per second for all machines together (100M); 0: no limit");
  show.add_option("--latency-ms", latency, "Delay of each operation")->check(CLI::NonNegativeNumber);

  return tool.run(argc, argv);
}

}  // namespace
}  // namespace lockstep::metered_fs

int main(int argc, char** argv) {
  return lockstep::metered_fs::run(argc, argv);
}
