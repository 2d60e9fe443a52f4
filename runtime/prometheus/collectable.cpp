#include "runtime/prometheus/collectable.h"

#include "runtime/prometheus/node_collectable.h"

namespace lockstep {

std::shared_ptr<::prometheus::Collectable> prometheus_collectable(World& world) {
  return std::make_shared<NodeCollectable>(world.timer().file());
}

}  // namespace lockstep
