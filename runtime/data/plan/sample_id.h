// The number by which a plan names a sample. It also holds the piece, if over-long samples are split, and the
// epoch of the sample's data set, in a mixture.
//
// Threads: values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::data {

/// Bits 0-39: the sample's number in its data set, from 0. Bits 40-47: in a mixture, the epoch of its data
/// set modulo 256. Bits 48-63: the piece of a sample that was split, from 0.
using SampleId = std::uint64_t;

constexpr unsigned kEpochShift = 40;
/// A SampleId holds the epoch modulo this.
constexpr std::uint64_t kEpochNumbers = 256;
constexpr unsigned kPieceShift = 48;
constexpr std::size_t kMaxSamples = std::size_t{1} << kEpochShift;
/// A sample is split into at most this many pieces.
constexpr std::uint64_t kMaxPieces = std::uint64_t{1} << (64 - kPieceShift);

inline SampleId sample_of(SampleId id) {
  return id & (kMaxSamples - 1);
}
/// Piece p begins at token p x cap.
inline std::uint64_t piece_of(SampleId id) {
  return id >> kPieceShift;
}
inline std::uint64_t epoch_of(SampleId id) {
  return (id >> kEpochShift) & 0xffU;
}

}  // namespace lockstep::data
