// multi_tensor.cuh - one kernel over the elements of many tensors.
//
// The list travels as a kernel parameter (4 KB at most), so nothing is uploaded and nothing has to
// stay alive; a longer list takes several launches. Tensors are cut into chunks of kChunk elements,
// numbered through; a block takes chunks in turn and finds the tensor of each by bisection, which
// costs a few reads of constant memory against 4096 elements of work.
#pragma once

#include <span>

#include "tarn/core/tensor.h"
#include "tarn/cuda/launch.h"
#include "tarn/cuda/vec.cuh"

namespace tarn::cuda {

inline constexpr int kMultiTensorThreads = 256;
/// Elements of a chunk: a multiple of every vector width, so that aligned tensors have aligned
/// chunks.
inline constexpr uint32_t kChunk = 4096;
inline constexpr size_t kTableBytes =
    3840;  // of 4 KB, the rest is for the kernel's other arguments

/// A part of tensor `index`: its elements [begin, begin + count).
struct ChunkPart {
  int index;
  int64_t begin;
  int count;
};

/// Tensors with kLists pointers each (parameter, gradient, state ...).
template <int kLists>
struct TensorTable {
  static constexpr int kMost = (kTableBytes - 16) / (8 * kLists + 16);

  int64_t numel[kMost];
  void* data[kLists][kMost];
  uint32_t end[kMost];  // of the tensor's chunks in the numbering through all
  int place[kMost];     // of the tensor in the caller's list
  int count = 0;

  __host__ __device__ uint32_t chunks() const { return count ? end[count - 1] : 0; }
  __host__ __device__ uint32_t first_chunk(int i) const { return i ? end[i - 1] : 0; }

  __device__ ChunkPart part(uint32_t chunk) const {
    int low = 0, high = count - 1;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (chunk < end[middle]) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    const int64_t begin = static_cast<int64_t>(chunk - first_chunk(low)) * kChunk;
    const int64_t left = numel[low] - begin;
    return {low, begin, left < kChunk ? static_cast<int>(left) : static_cast<int>(kChunk)};
  }
};

/// Calls f(table) for tables that together hold every non-empty tensor that `wanted` accepts.
/// lists[k][i] is pointer k of tensor i; an empty list gives null pointers.
template <int kLists, class Wanted, class F>
void for_tables(const std::span<const Tensor> (&lists)[kLists], Wanted wanted, F f) {
  TensorTable<kLists> table;
  static_assert(sizeof(table) <= kTableBytes);
  for (size_t i = 0; i < lists[0].size(); ++i) {
    const int64_t n = lists[0][i].numel();
    if (n == 0 || !wanted(lists[0][i])) continue;
    const int at = table.count;
    table.numel[at] = n;
    table.place[at] = static_cast<int>(i);
    table.end[at] = table.first_chunk(at) + static_cast<uint32_t>(ceil_div(n, kChunk));
    for (int k = 0; k < kLists; ++k) {
      table.data[k][at] = lists[k].empty() ? nullptr : lists[k][i].data();
    }
    if (++table.count < TensorTable<kLists>::kMost) continue;
    f(table);
    table.count = 0;
  }
  if (table.count > 0) f(table);
}

/// Blocks for the chunks of a table.
template <int kLists>
unsigned blocks_of(const TensorTable<kLists>& table, Stream stream) {
  return blocks_for(table.chunks(), 1, stream);
}

/// One element after another: update(w, r), where w are the element's values in the first kWritten
/// lists (all T, read and written) and r its value in the list after them (R, only read; kRead).
/// Values come in compute_t<T>; halves are rounded once, on the way back.
template <class T, class R, class Update>
__global__ void __launch_bounds__(kMultiTensorThreads)
    update_tensors(TensorTable<Update::kWritten + Update::kRead> table, Update update) {
  using A = compute_t<T>;
  constexpr int kWidth = kVecWidth<T>, kWritten = Update::kWritten;
  const auto element = [&update](T*(&w)[kWritten], A r, int i) {
    A values[kWritten];
#pragma unroll
    for (int k = 0; k < kWritten; ++k) values[k] = static_cast<A>(w[k][i]);
    update(values, r);
#pragma unroll
    for (int k = 0; k < kWritten; ++k) w[k][i] = T(values[k]);
  };
  for (uint32_t chunk = blockIdx.x; chunk < table.chunks(); chunk += gridDim.x) {
    const ChunkPart part = table.part(chunk);
    T* w[kWritten];
    uintptr_t address = 0;  // whose low bits tell whether all lists are aligned
#pragma unroll
    for (int k = 0; k < kWritten; ++k) {
      w[k] = static_cast<T*>(table.data[k][part.index]) + part.begin;
      address |= reinterpret_cast<uintptr_t>(w[k]);
    }
    const R* r = nullptr;
    if constexpr (Update::kRead) {
      r = static_cast<const R*>(table.data[kWritten][part.index]) + part.begin;
      address |= reinterpret_cast<uintptr_t>(r) * (sizeof(T) / sizeof(R));
    }
    int done = 0;
    if (address % 16 == 0) {
      done = part.count / kWidth * kWidth;
      for (int i = static_cast<int>(threadIdx.x) * kWidth; i < done;
           i += kMultiTensorThreads * kWidth) {
        Vec<T, kWidth> v[kWritten];
        Vec<R, kWidth> read;
#pragma unroll
        for (int k = 0; k < kWritten; ++k) v[k] = load_vec<kWidth>(w[k] + i);
        if constexpr (Update::kRead) read = load_vec<kWidth>(r + i);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          A values[kWritten];
#pragma unroll
          for (int k = 0; k < kWritten; ++k) values[k] = static_cast<A>(v[k].v[j]);
          A x = 0;
          if constexpr (Update::kRead) x = static_cast<A>(read.v[j]);
          update(values, x);
#pragma unroll
          for (int k = 0; k < kWritten; ++k) v[k].v[j] = T(values[k]);
        }
#pragma unroll
        for (int k = 0; k < kWritten; ++k) store_vec(w[k] + i, v[k]);
      }
    }
    for (int i = done + static_cast<int>(threadIdx.x); i < part.count; i += kMultiTensorThreads) {
      A x = 0;
      if constexpr (Update::kRead) x = static_cast<A>(r[i]);
      element(w, x, i);
    }
  }
}

}  // namespace tarn::cuda
