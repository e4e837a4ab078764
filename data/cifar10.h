// cifar10.h - CIFAR-10, binary version: records of a label byte and 3 x 32 x 32 bytes.
// Source: cs.toronto.edu/~kriz/cifar.html.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tarn/data/dataset.h"

namespace tarn::data {

extern const std::vector<std::string> kCifar10Classes;

/// data_batch_1.bin to data_batch_5.bin, or test_batch.bin, from `folder` or from
/// `folder`/cifar-10-batches-bin; held in memory as [3, 32, 32] pictures. Throws FileError if a
/// file is missing, not whole records, empty, or holds a label above 9.
std::unique_ptr<MemoryImages> load_cifar10(const std::string& folder, bool train);

}  // namespace tarn::data
