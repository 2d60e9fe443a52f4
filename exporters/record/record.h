// The record: how a rank's numbers get from the training process to whoever watches it. See layout.h for the
// file, writer.h for the rank's end and reader.h for the exporter's.
//
// Threads: see the parts.
#pragma once

#include "exporters/record/layout.h"    // IWYU pragma: export
#include "exporters/record/phase.h"     // IWYU pragma: export
#include "exporters/record/reader.h"    // IWYU pragma: export
#include "exporters/record/snapshot.h"  // IWYU pragma: export
#include "exporters/record/writer.h"    // IWYU pragma: export
