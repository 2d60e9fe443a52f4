// Compares which parts the samples of a pack have: files of other data that share a name up to the first dot become
// one sample, and a lost file leaves a sample without a part.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <string>

#include "staging/pack/index.h"

namespace lockstep::pack {

/// "3 of 100 samples have other parts than the others (cls, jpg): the first is 'a' (jpg)", for samples begin to end; "" if
/// all have the same. As in WebDataset, "JPG" is "jpg".
std::string describe_unequal_parts(const Index& index, std::size_t begin, std::size_t end);

}  // namespace lockstep::pack
