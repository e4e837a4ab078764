// mnist.h - MNIST and Fashion-MNIST: pictures and labels in IDX files, gzipped or not.
//
// IDX: bytes 0 0 type ndim, ndim big-endian u32 sizes, then the data.
// Source: yann.lecun.com/exdb/mnist, "The IDX file format".
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tarn/data/dataset.h"

namespace tarn::data {

/// An IDX file of bytes as a u8 tensor; gunzipped on the fly if it is gzip. Throws FileError on a
/// wrong magic, a type other than u8, a truncated or longer file.
Tensor load_idx(const std::string& path);

/// Where Debian's package dataset-fashion-mnist puts its files.
inline constexpr const char* kFashionMnistFolder = "/usr/share/datasets/fashion-mnist";
extern const std::vector<std::string> kFashionMnistClasses;

/// 60,000 training or 10,000 test pictures [1, 28, 28] (or what the files hold), from
/// {train,t10k}-images-idx3-ubyte and -labels-idx1-ubyte in `folder`, with or without ".gz"; held
/// in memory. Throws FileError if a file is missing (naming those looked for), the counts differ or
/// a label is not below the number of classes. No class names: "0" to "9".
std::unique_ptr<MemoryImages> load_mnist(const std::string& folder, bool train,
                                         const std::vector<std::string>& classes = {});

}  // namespace tarn::data
