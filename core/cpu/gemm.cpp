// gemm.cpp - blocks, packing and epilogue of the own matrix product.
//
// A piece of work is a block of rows x up to eight panels of columns x a part of k. For each slice
// of k it copies its part of A where the strides would thrash the L1 cache, packs one panel of B
// into L1, and runs the microkernel down the rows. Nothing is shared between pieces, so there are
// no barriers; packing B again for every 336 rows costs some 2 %.
#include "tarn/core/cpu/gemm.h"

#include <algorithm>

#include "tarn/core/cpu/gemm_epilogue.h"
#include "tarn/core/cpu/micro_gemm.h"
#include "tarn/core/cpu/scratch.h"
#include "tarn/core/cpu/tasks.h"

namespace tarn::cpu {
namespace {

constexpr int64_t kRowsPerPiece = 336;  // 24 register blocks of AVX-512, 56 of AVX2
constexpr int64_t kPanelsPerPiece = 8;
constexpr int64_t kDepthBytes = 1024;     // a slice of k: a panel of B takes half the L1 cache
constexpr int64_t kSerialMacs = 1 << 18;  // below, threads cost more than they bring
constexpr int64_t kSplitDepth = 512;      // the least k of a part
constexpr int64_t kMaxParts = 16;
constexpr int64_t kPackRows = 56;  // fewer rows do not pay for packing B

constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

template <typename T>
class Gemm {
  static constexpr int64_t kCols = kPanelOf<T>;
  static constexpr int64_t kSlice = kDepthBytes / static_cast<int64_t>(sizeof(T));

 public:
  explicit Gemm(const MatmulCall& call) : g_(call) {
    row_blocks_ = ceil_div(ceil_div(g_.m, kMaxRows), kRowsPerPiece / kMaxRows);
    panels_ = ceil_div(g_.n, kCols);
    col_blocks_ = ceil_div(panels_, kPanelsPerPiece);
    simple_ = g_.alpha == 1 && (g_.beta == 0 || g_.beta == 1) && g_.bias == nullptr &&
              g_.epilogue == Epilogue::kNone;
  }

  void run() {
    if (g_.macs() <= kSerialMacs) {
      for (int64_t i = 0; i < g_.batch * row_blocks_ * col_blocks_; ++i) piece(i, nullptr);
      return;
    }
    // Few large pieces leave threads without work: cut long sums by shape (the bits depend on it),
    // and rows and columns by the number of threads (they do not).
    const int64_t pieces = g_.batch * row_blocks_ * col_blocks_;
    if (pieces < kMaxParts && g_.k >= 2 * kSplitDepth && g_.k > 2 * std::max(g_.m, g_.n)) {
      parts_ = std::min(ceil_div(kMaxParts, pieces), g_.k / kSplitDepth);
    }
    const int64_t wanted = 4 * task_threads();
    if (pieces * parts_ < wanted && task_threads() > 1) {
      const int64_t most_rows = ceil_div(g_.m, 4 * kMaxRows);
      row_blocks_ = std::clamp(ceil_div(wanted, g_.batch * col_blocks_ * parts_), row_blocks_,
                               std::max(row_blocks_, most_rows));
      col_blocks_ = std::clamp(ceil_div(wanted, g_.batch * row_blocks_ * parts_), col_blocks_,
                               std::max(col_blocks_, ceil_div(panels_, 2)));
    }
    const int64_t count = g_.batch * row_blocks_ * col_blocks_ * parts_;
    if (parts_ == 1) {
      parallel_tasks(count, [&](int64_t i) { piece(i, nullptr); });
      return;
    }
    partial_row_ = panels_ * kCols;
    const int64_t size = g_.m * partial_row_;
    T* partial = static_cast<T*>(
        scratch(ScratchSlot::kShared, static_cast<size_t>(g_.batch * parts_ * size) * sizeof(T)));
    parallel_tasks(count, [&](int64_t i) { piece(i, partial); });
    parallel_tasks(g_.batch * g_.m, [&](int64_t row) {
      const T* from = partial + row / g_.m * parts_ * size + row % g_.m * partial_row_;
      T* sum = static_cast<T*>(scratch(ScratchSlot::kBlock, static_cast<size_t>(g_.n) * sizeof(T)));
      std::copy(from, from + g_.n, sum);
      for (int64_t p = 1; p < parts_; ++p) {
        for (int64_t j = 0; j < g_.n; ++j) sum[j] += from[p * size + j];
      }
      finish(row / g_.m, row % g_.m, 1, 0, g_.n, sum, g_.n);
    });
  }

 private:
  const T* a(int64_t batch) const { return static_cast<const T*>(g_.a) + batch * g_.a_batch; }
  const T* b(int64_t batch) const { return static_cast<const T*>(g_.b) + batch * g_.b_batch; }
  T* c(int64_t batch) const { return static_cast<T*>(g_.c) + batch * g_.c_batch; }

  /// Piece i of the product; `partial` takes the sums when k is cut into parts.
  void piece(int64_t i, T* partial) {
    const int64_t part = i % parts_, col_block = i / parts_ % col_blocks_;
    const int64_t row_block = i / parts_ / col_blocks_ % row_blocks_;
    const int64_t batch = i / parts_ / col_blocks_ / row_blocks_;
    const int64_t strips = ceil_div(g_.m, kMaxRows);
    const int64_t r0 = strips * row_block / row_blocks_ * kMaxRows;
    const int64_t r1 = std::min(g_.m, strips * (row_block + 1) / row_blocks_ * kMaxRows);
    const int64_t p0 = panels_ * col_block / col_blocks_;
    const int64_t p1 = panels_ * (col_block + 1) / col_blocks_;
    const int64_t k0 = g_.k * part / parts_, k1 = g_.k * (part + 1) / parts_;
    const int64_t rows = r1 - r0, width = (p1 - p0) * kCols;
    if (rows <= 0 || width <= 0) return;

    const bool pack_a = must_copy_a(rows, p1 - p0), pack_b = g_.b_col != 1 || rows > kPackRows;
    const int64_t a_size = pack_a ? (rows + kWidth<T>)*(kSlice + kWidth<T>) : 0;
    const int64_t c_size = partial == nullptr ? rows * width : 0;
    T* b_panel = static_cast<T*>(scratch(
        ScratchSlot::kBlock, static_cast<size_t>(kSlice * kCols + a_size + c_size) * sizeof(T)));
    T* a_copy = b_panel + kSlice * kCols;
    T* sums = a_copy + a_size;
    int64_t sums_row = width;
    if (partial != nullptr) {
      sums = partial + ((batch * parts_ + part) * g_.m + r0) * partial_row_ + p0 * kCols;
      sums_row = partial_row_;
    }
    const int64_t slices = std::max<int64_t>(1, ceil_div(k1 - k0, kSlice));
    for (int64_t s = 0, k = k0; s < slices; ++s) {
      const int64_t kc = (k1 - k) / (slices - s);
      const T* a_slice = a(batch) + r0 * g_.a_row + k * g_.a_col;
      StrideA strides{g_.a_row, g_.a_col};
      if (pack_a) {
        strides = copy_a(a_slice, rows, kc, a_copy);
        a_slice = a_copy;
      }
      for (int64_t p = p0; p < p1; ++p) {
        const int64_t cols = std::min(kCols, g_.n - p * kCols);
        const bool in_place = simple_ && partial == nullptr && cols % kWidth<T> == 0;
        T* out = in_place ? c(batch) + r0 * g_.c_row + p * kCols : sums + (p - p0) * kCols;
        const int64_t out_row = in_place ? g_.c_row : sums_row;
        const T* panel = b(batch) + k * g_.b_row + p * kCols * g_.b_col;
        int64_t ldb = g_.b_row;
        if (pack_b || cols % kWidth<T> != 0) {
          pack_panel(panel, kc, cols, b_panel);
          panel = b_panel;
          ldb = kCols;
        }
        const bool accumulate = s > 0 || (in_place && g_.beta == 1);
        if (strides.depth == 1) {
          panel_gemm<T, 0, 1>(rows, cols, kc, a_slice, strides, panel, ldb, out, out_row,
                              accumulate);
        } else {
          panel_gemm<T, 1, 0>(rows, cols, kc, a_slice, strides, panel, ldb, out, out_row,
                              accumulate);
        }
      }
      k += kc;
    }
    if (partial != nullptr) return;
    if (!simple_) {
      finish(batch, r0, rows, p0 * kCols, std::min(width, g_.n - p0 * kCols), sums, sums_row);
    } else if (p1 * kCols > g_.n && (g_.n % kCols) % kWidth<T> != 0) {
      const int64_t first = (p1 - 1) * kCols;
      finish(batch, r0, rows, first, g_.n - first, sums + first - p0 * kCols, sums_row);
    }
  }

  /// Copies when neither stride is 1, when a power-of-two stride would map the rows of a register
  /// block (or the steps of k) to a few cache sets, or when many panels read the same block.
  bool must_copy_a(int64_t rows, int64_t panels) const {
    const int64_t far = g_.a_col == 1 ? g_.a_row : g_.a_col;
    if (g_.a_col != 1 && g_.a_row != 1) return true;
    const bool aliases = far * static_cast<int64_t>(sizeof(T)) % 2048 == 0;
    return rows > kMaxRows && (panels >= 4 || (aliases && panels >= 2));
  }

  StrideA copy_a(const T* from, int64_t rows, int64_t kc, T* to) const {
    if (g_.a_row == 1 && g_.a_col != 1) {
      const int64_t stride = rows + kWidth<T>;
      for (int64_t k = 0; k < kc; ++k) {
        std::copy_n(from + k * g_.a_col, rows, to + k * stride);
      }
      return {1, stride};
    }
    const int64_t stride = kSlice + kWidth<T>;
    for (int64_t r = 0; r < rows; ++r) {
      if (g_.a_col == 1) {
        std::copy_n(from + r * g_.a_row, kc, to + r * stride);
      } else {
        for (int64_t k = 0; k < kc; ++k) to[r * stride + k] = from[r * g_.a_row + k * g_.a_col];
      }
    }
    return {stride, 1};
  }

  /// B[kc, cols] to a dense panel of kCols columns, zeros beyond cols.
  void pack_panel(const T* from, int64_t kc, int64_t cols, T* to) const {
    if (g_.b_col == 1 && cols == kCols) {
      for (int64_t k = 0; k < kc; ++k) std::copy_n(from + k * g_.b_row, kCols, to + k * kCols);
      return;
    }
    int64_t done = 0;
    if constexpr (std::is_same_v<T, float>) {
      if (g_.b_row == 1) done = pack_transposed(from, kc, cols, to);
    }
    if (cols < kCols) std::fill(to + done * kCols, to + kc * kCols, T(0));
    for (int64_t k = done; k < kc; ++k) {
      for (int64_t j = 0; j < cols; ++j) to[k * kCols + j] = from[k * g_.b_row + j * g_.b_col];
    }
  }

  /// The same for columns dense in k, 16 x 16 at a time; returns how many steps of k are packed.
  /// Vectors wholly beyond cols are left alone: the microkernel does not read them.
  int64_t pack_transposed(const float* from, int64_t kc, int64_t cols, float* to) const {
    const int64_t done = kc / kLanes * kLanes;
    for (int64_t j = 0; j < cols; j += kLanes) {
      const int64_t count = std::min(kLanes, cols - j);
      for (int64_t k = 0; k < done; k += kLanes) {
        v16 block[kLanes];
        for (int64_t q = 0; q < kLanes; ++q) {
          block[q] = q < count ? load16(from + (j + q) * g_.b_col + k) : v16{};
        }
        transpose16(block);
        for (int64_t q = 0; q < kLanes; ++q) store16(to + (k + q) * kCols + j, block[q]);
      }
    }
    return done;
  }

  /// Sums to C: scale, add, bias, activation.
  void finish(int64_t batch, int64_t row, int64_t rows, int64_t col, int64_t cols, const T* sums,
              int64_t sums_row) const {
    const T* bias = g_.bias != nullptr ? static_cast<const T*>(g_.bias) + col : nullptr;
    for (int64_t r = 0; r < rows; ++r) {
      finish_row(sums + r * sums_row, cols, T(g_.alpha), T(g_.beta), bias, g_.epilogue,
                 c(batch) + (row + r) * g_.c_row + col);
    }
  }

  const MatmulCall& g_;
  int64_t row_blocks_, col_blocks_, panels_, parts_ = 1;
  int64_t partial_row_ = 0;
  bool simple_;
};

}  // namespace

void gemm(const MatmulCall& call) {
  if (call.batch == 0 || call.m == 0 || call.n == 0) return;
  if (call.dtype == DType::kF64) {
    Gemm<double>(call).run();
  } else {
    Gemm<float>(call).run();
  }
}

}  // namespace tarn::cpu
