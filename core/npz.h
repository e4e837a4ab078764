// npz.h - NumPy's files: .npy holds one array, .npz a zip archive of them.
//
// Types tarn lacks are widened on reading: i8, i16 and u16 become i32, u32 and u64 become i64 (u64
// only if every value fits). Either byte order and Fortran order are read; arrays are written
// little-endian in C order, byte for byte as numpy 1.24 does.
// Source: numpy.lib.format; PKWARE APPNOTE for zip.
#pragma once

#include <string>

#include "tarn/core/tensor_dict.h"

namespace tarn {

/// Throws FileError naming path and offset on anything malformed, truncated, or of a type that has
/// no tensor: structured, text, object and complex arrays.
Tensor load_npy(const std::string& path);
/// Throws DTypeError on bf16, which numpy does not have.
void save_npy(const std::string& path, const Tensor& tensor);

/// The arrays of an archive in its order, under their names without ".npy". Checks every CRC.
TensorDict load_npz(const std::string& path);
struct NpzOptions {
  bool compress = false;  ///< deflate, as numpy.savez_compressed
};
void save_npz(const std::string& path, const TensorDict& tensors, const NpzOptions& options = {});

}  // namespace tarn
