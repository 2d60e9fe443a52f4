// What a training program needs, in one include; the loader is apart (runtime/data/loader.h, lockstep::data).
#pragma once

#include "runtime/comm/communicator.h"              // IWYU pragma: export
#include "runtime/comm/world.h"                     // IWYU pragma: export
#include "runtime/ddp/collectives.h"                // IWYU pragma: export
#include "runtime/ddp/distributed_data_parallel.h"  // IWYU pragma: export
#include "runtime/ddp/hooks/compress.h"             // IWYU pragma: export
#include "runtime/ddp/hooks/power_sgd.h"            // IWYU pragma: export
#include "runtime/profile/step_timer.h"             // IWYU pragma: export
#include "runtime/train/clip_grad_norm.h"           // IWYU pragma: export
#include "runtime/train/distributed_optimizer.h"    // IWYU pragma: export
