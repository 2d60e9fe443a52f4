// Everything that a training program needs, in one include, except the loader (runtime/data/loader.h,
// lockstep::data).
#pragma once

#include "common/leaf/error.h"                      // IWYU pragma: export
#include "runtime/comm/communicator.h"              // IWYU pragma: export
#include "runtime/comm/world.h"                     // IWYU pragma: export
#include "runtime/ddp/collectives.h"                // IWYU pragma: export
#include "runtime/ddp/distributed_data_parallel.h"  // IWYU pragma: export
#include "runtime/ddp/hooks/compression.h"          // IWYU pragma: export
#include "runtime/profile/step_timer.h"             // IWYU pragma: export
#include "runtime/train/activation_checkpoint.h"    // IWYU pragma: export
#include "runtime/train/checkpoint/checkpointer.h"  // IWYU pragma: export
#include "runtime/train/checkpoint/stop_signal.h"   // IWYU pragma: export
#include "runtime/train/clip_grad_norm.h"           // IWYU pragma: export
#include "runtime/train/debug.h"                    // IWYU pragma: export
#include "runtime/train/distributed_optimizer.h"    // IWYU pragma: export
#include "runtime/train/fused_optimizer.h"          // IWYU pragma: export
#include "runtime/train/grad_scaler.h"              // IWYU pragma: export
#include "runtime/train/learning_rate.h"            // IWYU pragma: export
#include "runtime/train/script_module.h"            // IWYU pragma: export
#include "runtime/train/settings.h"                 // IWYU pragma: export
#include "runtime/train/sync_batch_norm.h"          // IWYU pragma: export
#include "runtime/train/validation.h"               // IWYU pragma: export
