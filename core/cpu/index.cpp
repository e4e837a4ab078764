// index.cpp - gathering and scattering on the CPU.
//
// Moves work on the bytes of an element, whatever its dtype. Results are the same at any thread
// count: gathers write each element once, scatters give each thread its own part of the output and
// let it walk the indices in order.
#include <algorithm>
#include <cstring>
#include <vector>

#include "tarn/core/cpu/table.h"
#include "tarn/core/parallel.h"

namespace tarn::cpu {
namespace {

constexpr int64_t kGrain = 16384;  // elements per thread below which splitting does not pay

template <class F>
void visit_bytes(DType dtype, F f) {
  switch (item_size(dtype)) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    default:
      return f(uint64_t{});
  }
}

template <class T>
T* as(const Tensor& x) {
  return static_cast<T*>(x.data());
}

/// Items of `cost` elements each that one thread should at least get.
int64_t grain_for(int64_t cost) {
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, cost));
}

void find_out_of_range(const Tensor& index, const IndexCheck& check, int64_t* position, Stream) {
  const auto* v = as<const int64_t>(index);
  const int64_t n = index.numel(), ignored = check.ignore_index;
  // Two comparisons per value; the loop over a block has no exit, so it vectorises.
  const auto low = static_cast<uint64_t>(check.low);
  const int64_t counts = !check.labels;  // no value is ignored
  const uint64_t range = check.high > check.low ? static_cast<uint64_t>(check.high) - low : 0;
  constexpr int64_t kBlock = 1024;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    int64_t bad = 0;
    for (int64_t i = begin; i < end; ++i) {
      bad |= int64_t{static_cast<uint64_t>(v[i]) - low >= range} & (counts | (v[i] != ignored));
    }
    if (!bad) continue;
    for (int64_t i = begin; i < end; ++i) {
      if (!check.allows(v[i])) {
        *position = i;
        return;
      }
    }
  }
  *position = -1;
}

void wrap_negative(const Tensor& index, int64_t size, const Tensor& out, Stream) {
  const auto* v = as<const int64_t>(index);
  auto* to = as<int64_t>(out);
  for (int64_t i = 0; i < index.numel(); ++i) to[i] = v[i] < 0 ? v[i] + size : v[i];
}

void index_select(const Tensor& x, const Tensor& index, const Tensor& out, Stream) {
  const int64_t outer = x.size(0), size = x.size(1), inner = x.size(2), n = index.numel();
  const auto* ix = as<const int64_t>(index);
  visit_bytes(x.dtype(), [&](auto bytes) {
    using T = decltype(bytes);
    const auto* from = as<const T>(x);
    auto* to = as<T>(out);
    parallel_for(outer * n, grain_for(inner), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* source = from + (row / n * size + ix[row % n]) * inner;
        T* target = to + row * inner;
        if (inner < 16) {
          for (int64_t i = 0; i < inner; ++i) target[i] = source[i];
        } else {
          std::memcpy(target, source, static_cast<size_t>(inner) * sizeof(T));
        }
      }
    });
  });
}

template <class T, bool kAdd>
void update(T* out, const T* src, int64_t n, T alpha) {
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (!kAdd) {
      out[i] = src[i];
    } else if constexpr (std::is_same_v<T, bool>) {
      out[i] = out[i] || src[i];
    } else {
      out[i] = static_cast<T>(out[i] + alpha * src[i]);
    }
  }
}

template <class T, bool kAdd>
void index_add_typed(const Tensor& out, const Tensor& index, const Tensor& src, T alpha) {
  const int64_t outer = out.size(0), size = out.size(1), inner = out.size(2), n = index.numel();
  const auto* ix = as<const int64_t>(index);
  const auto* from = as<const T>(src);
  auto* to = as<T>(out);
  const auto columns = [&](int64_t o, int64_t i0, int64_t i1) {
    for (int64_t k = 0; k < n; ++k) {
      update<T, kAdd>(to + (o * size + ix[k]) * inner + i0, from + (o * n + k) * inner + i0,
                      i1 - i0, alpha);
    }
  };
  constexpr int64_t kColumns = 64;
  const int64_t blocks = (inner + kColumns - 1) / kColumns;
  if (outer * n * inner < 2 * kGrain || num_threads() == 1) {
    for (int64_t o = 0; o < outer; ++o) columns(o, 0, inner);
  } else if (outer * blocks >= num_threads()) {
    // Each thread owns columns of the output.
    parallel_for(outer * blocks, 1, [&](int64_t begin, int64_t end) {
      while (begin < end) {
        const int64_t o = begin / blocks;
        const int64_t stop = std::min(end, (o + 1) * blocks);
        columns(o, begin % blocks * kColumns, std::min(inner, (stop - o * blocks) * kColumns));
        begin = stop;
      }
    });
  } else {
    // Narrow rows: each thread owns rows of the output and skips the others' indices.
    parallel_for(size, 1, [&](int64_t begin, int64_t end) {
      for (int64_t o = 0; o < outer; ++o) {
        for (int64_t k = 0; k < n; ++k) {
          if (ix[k] < begin || ix[k] >= end) continue;
          update<T, kAdd>(to + (o * size + ix[k]) * inner, from + (o * n + k) * inner, inner,
                          alpha);
        }
      }
    });
  }
}

/// Calls f with a value of the type in which dtype is added.
template <class F>
void visit_addable(DType dtype, F f) {
  visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_arithmetic_v<T>) f(T{});
  });
}

void index_add(ScatterOp op, const Tensor& out, const Tensor& index, const Tensor& src,
               double alpha, Stream) {
  if (op == ScatterOp::kWrite) {
    visit_bytes(out.dtype(), [&](auto bytes) {
      using T = decltype(bytes);
      index_add_typed<T, false>(out, index, src, T(1));
    });
  } else {
    visit_addable(out.dtype(), [&](auto value) {
      using T = decltype(value);
      index_add_typed<T, true>(out, index, src, static_cast<T>(alpha));
    });
  }
}

/// How gather and scatter walk: index as [A, D, B] with dim in the middle, and for each (a, b) the
/// offset of that line in the strided tensor.
class Lines {
 public:
  static constexpr int64_t kWidth = 64;
  Lines(const Tensor& strided, int64_t dim, const Tensor& index)
      : length(index.size(dim)), step(strided.stride(dim)), ndim_(0) {
    for (int d = 0; d < index.dim(); ++d) {
      if (d == dim) continue;
      (d < dim ? before : after) *= index.size(d);
      sizes_[ndim_] = index.size(d);
      strides_[ndim_++] = strided.stride(d);
    }
  }
  int64_t blocks() const { return (after + kWidth - 1) / kWidth; }
  /// Offsets of the lines (a, b0), (a, b0 + 1), ...
  void offsets(int64_t a, int64_t b0, int64_t count, int64_t* out) const {
    for (int64_t j = 0; j < count; ++j) {
      int64_t rest = a * after + b0 + j, offset = 0;
      for (int d = ndim_ - 1; d >= 0; --d) {
        offset += rest % sizes_[d] * strides_[d];
        rest /= sizes_[d];
      }
      out[j] = offset;
    }
  }
  int64_t before = 1, after = 1, length, step;

 private:
  int ndim_;
  int64_t sizes_[kMaxDims], strides_[kMaxDims];
};

void gather(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& out, Stream) {
  const Lines lines(x, dim, index);
  const auto* ix = as<const int64_t>(index);
  constexpr int64_t kLength = 512;  // a long line may be cut as well
  const int64_t pieces = (lines.length + kLength - 1) / kLength, blocks = lines.blocks();
  const int64_t cost = std::min(lines.length, kLength) * std::min(lines.after, Lines::kWidth);
  visit_bytes(x.dtype(), [&](auto bytes) {
    using T = decltype(bytes);
    const auto* from = as<const T>(x);
    auto* to = as<T>(out);
    parallel_for(lines.before * blocks * pieces, grain_for(cost), [&](int64_t begin, int64_t end) {
      int64_t offsets[Lines::kWidth];
      for (int64_t task = begin; task < end; ++task) {
        const int64_t a = task / (blocks * pieces);
        const int64_t b0 = task / pieces % blocks * Lines::kWidth;
        const int64_t k0 = task % pieces * kLength;
        const int64_t k1 = std::min(lines.length, k0 + kLength);
        const int64_t count = std::min(Lines::kWidth, lines.after - b0);
        lines.offsets(a, b0, count, offsets);
        for (int64_t k = k0; k < k1; ++k) {
          const int64_t at = (a * lines.length + k) * lines.after + b0;
          for (int64_t j = 0; j < count; ++j) {
            to[at + j] = from[offsets[j] + ix[at + j] * lines.step];
          }
        }
      }
    });
  });
}

template <class T, bool kAdd>
void scatter_typed(const Tensor& out, int64_t dim, const Tensor& index, const Tensor& src) {
  const Lines lines(out, dim, index);
  const auto* ix = as<const int64_t>(index);
  const auto* from = as<const T>(src);
  auto* to = as<T>(out);
  const int64_t blocks = lines.blocks();
  const int64_t cost = lines.length * std::min(lines.after, Lines::kWidth);
  parallel_for(lines.before * blocks, grain_for(cost), [&](int64_t begin, int64_t end) {
    int64_t offsets[Lines::kWidth];
    for (int64_t task = begin; task < end; ++task) {
      const int64_t a = task / blocks, b0 = task % blocks * Lines::kWidth;
      const int64_t count = std::min(Lines::kWidth, lines.after - b0);
      lines.offsets(a, b0, count, offsets);
      for (int64_t k = 0; k < lines.length; ++k) {
        const int64_t at = (a * lines.length + k) * lines.after + b0;
        for (int64_t j = 0; j < count; ++j) {
          update<T, kAdd>(to + offsets[j] + ix[at + j] * lines.step, from + at + j, 1, T(1));
        }
      }
    }
  });
}

void scatter(ScatterOp op, const Tensor& out, int64_t dim, const Tensor& index, const Tensor& src,
             Stream) {
  if (op == ScatterOp::kWrite) {
    visit_bytes(out.dtype(),
                [&](auto bytes) { scatter_typed<decltype(bytes), false>(out, dim, index, src); });
  } else {
    visit_addable(out.dtype(),
                  [&](auto value) { scatter_typed<decltype(value), true>(out, dim, index, src); });
  }
}

constexpr int64_t kChunk = 8192;  // elements whose non-zeros are counted together

std::vector<int64_t> nonzeros_per_chunk(const Tensor& x) {
  const int64_t n = x.numel(), chunks = (n + kChunk - 1) / kChunk;
  std::vector<int64_t> counts(static_cast<size_t>(chunks));
  visit_dtype(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* v = x.data<T>();
    parallel_for(chunks, 4, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        int64_t count = 0;
        const int64_t stop = std::min(n, (c + 1) * kChunk);
        for (int64_t i = c * kChunk; i < stop; ++i) count += v[i] != T(0);
        counts[static_cast<size_t>(c)] = count;
      }
    });
  });
  return counts;
}

void count_nonzero(const Tensor& x, int64_t* count, Stream) {
  *count = 0;
  for (int64_t c : nonzeros_per_chunk(x)) *count += c;
}

void nonzero(const Tensor& x, const Tensor& out, Stream) {
  const int64_t n = x.numel(), ndim = x.dim();
  std::vector<int64_t> starts = nonzeros_per_chunk(x);
  int64_t total = 0;
  for (int64_t& s : starts) total += std::exchange(s, total);
  auto* to = as<int64_t>(out);
  visit_dtype(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* v = x.data<T>();
    parallel_for(static_cast<int64_t>(starts.size()), 4, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        int64_t* row = to + starts[static_cast<size_t>(c)] * ndim;
        const int64_t stop = std::min(n, (c + 1) * kChunk);
        for (int64_t i = c * kChunk; i < stop; ++i) {
          if (!(v[i] != T(0))) continue;
          int64_t rest = i;
          for (int64_t d = ndim - 1; d >= 0; --d) {
            row[d] = rest % x.size(d);
            rest /= x.size(d);
          }
          row += ndim;
        }
      }
    });
  });
}

void triangle(bool upper, const Tensor& x, int64_t diagonal, const Tensor& out, Stream) {
  const int64_t rows = x.size(1), cols = x.size(2);
  visit_bytes(x.dtype(), [&](auto bytes) {
    using T = decltype(bytes);
    const auto* from = as<const T>(x);
    auto* to = as<T>(out);
    parallel_for(x.size(0) * rows, grain_for(cols), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        // Columns below `split` are the lower triangle's.
        const int64_t at = r % rows + diagonal + (upper ? 0 : 1);
        const int64_t split = std::clamp<int64_t>(at, 0, cols);
        const T* source = from + r * cols;
        T* target = to + r * cols;
        const int64_t keep0 = upper ? split : 0, keep1 = upper ? cols : split;
        std::fill(target, target + keep0, T(0));
        std::copy(source + keep0, source + keep1, target + keep0);
        std::fill(target + keep1, target + cols, T(0));
      }
    });
  });
}

}  // namespace

void add_index_kernels(KernelTable& table) {
  table.index.find_out_of_range = find_out_of_range;
  table.index.wrap_negative = wrap_negative;
  table.index.index_select = index_select;
  table.index.index_add = index_add;
  table.index.gather = gather;
  table.index.scatter = scatter;
  table.index.count_nonzero = count_nonzero;
  table.index.nonzero = nonzero;
  table.index.triangle = triangle;
}

}  // namespace tarn::cpu
