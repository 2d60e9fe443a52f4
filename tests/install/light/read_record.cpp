// Reads a record with nothing but lockstep::record.
#include <exporters/record/record.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const lockstep::record::Reader reader(argv[1]);
  const auto steps = static_cast<unsigned long long>(reader.read().counters.steps);
  std::printf("%llu steps\n", steps);
  return steps > 0 ? 0 : 1;
}
