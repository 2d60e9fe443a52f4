// The order that the NCCL communicator makes between streams, under the race detector.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
