// The record: how a rank's numbers get from the training process to exporters and reports. layout.h describes
// the file, writer.h is for the rank, reader.h for the exporter.
//
// Threads: see the parts.
#pragma once

#include "exporters/record/layout.h"    // IWYU pragma: export
#include "exporters/record/reader.h"    // IWYU pragma: export
#include "exporters/record/snapshot.h"  // IWYU pragma: export
#include "exporters/record/writer.h"    // IWYU pragma: export
