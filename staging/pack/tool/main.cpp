// lockstep-pack: makes packs and reads them.

#include "common/tool.h"
#include "staging/pack/tool/verbs.h"

int main(int argc, char** argv) {
  lockstep::Tool tool("lockstep-pack",
                      "Pack many small files into a few tar shards with an index, and read packs");
  lockstep::pack::add_create_verb(tool);
  lockstep::pack::add_convert_verb(tool);
  lockstep::pack::add_look_verbs(tool);
  return tool.run(argc, argv);
}
