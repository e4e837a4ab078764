// gemm.cpp - blocks, packing and epilogue of the own matrix product.
//
// A piece of work is a block of rows x a block of columns x a part of k. For each slice of k it
// packs its part of A, which stays in the L2 cache, then one panel of B after another, and runs the
// microkernel down the rows while the panel is in L1. Nothing is shared between pieces, so there
// are no barriers: packing again what other pieces pack too costs 2 to 4 %.
#include "tarn/core/cpu/gemm.h"

#include <algorithm>
#include <type_traits>

#include "tarn/core/cpu/gemm_epilogue.h"
#include "tarn/core/cpu/gemm_pack.h"
#include "tarn/core/cpu/scratch.h"
#include "tarn/core/cpu/tasks.h"

namespace tarn::cpu {
namespace {

constexpr int64_t kDepthBytes = kVectorBytes == 64 ? 1536 : 1024;  // a slice of k, at most
// The block of A of a piece: what L2 caches of such processors hold beside a panel of B.
constexpr int64_t kBlockBytes = kVectorBytes == 64 ? 640 << 10 : 192 << 10;
constexpr int64_t kPanelsPerPiece = 48;
constexpr int64_t kSerialMacs = 1 << 18;  // below, threads cost more than they bring
constexpr int64_t kPackRows = 56;         // fewer rows do not pay for packing B
constexpr int64_t kPackPanels = 16;       // nor fewer panels for packing A
constexpr int64_t kPanelsKept = 3;        // panels of a full slice that L2 holds beside others
// Long sums are cut into parts when C has less than kMaxParts blocks of this size.
constexpr int64_t kPartRows = 336, kPartPanels = 8;
constexpr int64_t kSplitDepth = 512;  // the least k of a part
constexpr int64_t kMaxParts = 16;

constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// In: of A, B, bias and C; T: what is computed in. C is T if call.wide_c.
template <typename In, typename T>
class Gemm {
  static constexpr int64_t kCols = kPanelOf<T>;
  static constexpr int64_t kSlice = kDepthBytes / static_cast<int64_t>(sizeof(T));
  static constexpr bool kSame = std::is_same_v<In, T>;

 public:
  explicit Gemm(const MatmulCall& call) : g_(call) {
    panels_ = ceil_div(g_.n, kCols);
    strips_ = ceil_div(g_.m, kMaxRows);
    slices_ = std::max<int64_t>(1, ceil_div(g_.k, kSlice));
    const int64_t most = kBlockBytes / static_cast<int64_t>(sizeof(T)) / kMaxRows /
                         std::max<int64_t>(64, ceil_div(g_.k, slices_));
    row_blocks_ = ceil_div(strips_, most);
    col_blocks_ = ceil_div(panels_, kPanelsPerPiece);
    simple_ = (kSame || g_.wide_c) && g_.alpha == 1 && (g_.beta == 0 || g_.beta == 1) &&
              (kSame || g_.bias == nullptr) && g_.epilogue == Epilogue::kNone;
  }

  void run() {
    if (g_.macs() <= kSerialMacs) {
      for (int64_t i = 0; i < g_.batch * row_blocks_ * col_blocks_; ++i) piece(i, nullptr);
      return;
    }
    // Long sums are cut by shape (the bits depend on it), rows and columns by the number of threads
    // (they do not).
    const int64_t blocks = g_.batch * ceil_div(g_.m, kPartRows) * ceil_div(panels_, kPartPanels);
    if (blocks < kMaxParts && g_.k >= 2 * kSplitDepth && g_.k > 2 * std::max(g_.m, g_.n)) {
      parts_ = std::min(ceil_div(kMaxParts, blocks), g_.k / kSplitDepth);
      slices_ = std::max<int64_t>(1, ceil_div(ceil_div(g_.k, parts_), kSlice));
    }
    cut_for_threads();
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
  const In* a(int64_t batch) const { return static_cast<const In*>(g_.a) + batch * g_.a_batch; }
  const In* b(int64_t batch) const { return static_cast<const In*>(g_.b) + batch * g_.b_batch; }

  /// Picks the cut of least time by what the busiest thread does: multiply-adds, and the packing of
  /// A and B, where an element costs as much as kPackMacs. Of cuts within 2 % it takes the finest,
  /// which copes best with threads that are held up.
  void cut_for_threads() {
    constexpr int64_t kPackMacs = 24, kPiecesPerThread = 4;
    const int64_t threads = task_threads();
    if (threads == 1) return;
    const int64_t least_rows = row_blocks_;
    int64_t best = 0, best_pieces = 0;
    for (int64_t cols = col_blocks_; cols <= panels_; cols *= 2) {
      const int64_t others = g_.batch * parts_ * cols;
      for (int64_t each = 1; each <= kPiecesPerThread; ++each) {
        const int64_t rows = std::clamp(each * threads / others, least_rows, strips_);
        const int64_t pieces = others * rows;
        const int64_t m = ceil_div(strips_, rows) * kMaxRows;
        const int64_t n = ceil_div(panels_, cols) * kCols;
        const int64_t cost = ceil_div(pieces, threads) * (m * n + kPackMacs * (m + n));
        if (best == 0 || cost < best - best / 50 ||
            (cost < best + best / 50 && pieces > best_pieces)) {
          best = best == 0 ? cost : std::min(best, cost), best_pieces = pieces;
          row_blocks_ = rows, col_blocks_ = cols;
        }
      }
      if (others * least_rows >= kPiecesPerThread * threads) break;
    }
  }

  struct Panel {
    const T* data;
    int64_t row;
  };

  /// A slice of k of a piece.
  struct Slice {
    int64_t batch, first_row, rows, first_panel, kc;
    const In* a;        // in place
    const T* a_packed;  // or null
    T* sums;            // of what does not go to C at once
    int64_t sums_row, sums_panel;
    bool first, last, partial;
  };

  /// Piece i of the product; `partial` takes the sums when k is cut into parts.
  void piece(int64_t i, T* partial) {
    const int64_t part = i % parts_, col_block = i / parts_ % col_blocks_;
    const int64_t row_block = i / parts_ / col_blocks_ % row_blocks_;
    const int64_t batch = i / parts_ / col_blocks_ / row_blocks_;
    const int64_t r0 = strips_ * row_block / row_blocks_ * kMaxRows;
    const int64_t r1 = std::min(g_.m, strips_ * (row_block + 1) / row_blocks_ * kMaxRows);
    const int64_t p0 = panels_ * col_block / col_blocks_;
    const int64_t p1 = panels_ * (col_block + 1) / col_blocks_;
    const int64_t k0 = g_.k * part / parts_, k1 = g_.k * (part + 1) / parts_;
    const int64_t rows = r1 - r0, panels = p1 - p0;
    if (rows <= 0 || panels <= 0) return;

    const bool packs_a = must_pack_a(rows, panels);
    const bool packs_b = !kSame || g_.b_col != 1 || rows > kPackRows;
    const int64_t depth = std::min(kSlice, k1 - k0);
    // All of B stays in L2 where it is small: then each row of A is read once, for all panels.
    const bool rows_first =
        packs_b && !packs_a && slices_ == 1 && depth * panels <= kSlice * kPanelsKept;
    const int64_t b_size = depth * kCols * (rows_first ? panels : 1);
    const int64_t a_size = packs_a ? packed_a_size(rows, depth) : 0;
    // Sums of one panel, or of all while slices are left to add.
    const int64_t sums_panel = slices_ == 1 ? 0 : kCols;
    const int64_t sums_size = partial == nullptr ? rows * (slices_ == 1 ? 1 : panels) * kCols : 0;
    T* const b_packed = static_cast<T*>(
        scratch(ScratchSlot::kBlock, static_cast<size_t>(b_size + a_size + sums_size) * sizeof(T)));
    T* const a_packed = b_packed + b_size;
    Slice slice{batch,
                r0,
                rows,
                p0,
                0,
                nullptr,
                packs_a ? a_packed : nullptr,
                a_packed + a_size,
                slices_ == 1 ? kCols : panels * kCols,
                sums_panel,
                true,
                false,
                partial != nullptr};
    if (partial != nullptr) {
      slice.sums = partial + ((batch * parts_ + part) * g_.m + r0) * partial_row_ + p0 * kCols;
      slice.sums_row = partial_row_, slice.sums_panel = kCols;
    }
    for (int64_t s = 0, k = k0; s < slices_; ++s, k += slice.kc) {
      slice.kc = (k1 - k) / (slices_ - s);
      slice.first = s == 0, slice.last = s + 1 == slices_;
      slice.a = a(batch) + r0 * g_.a_row + k * g_.a_col;
      if (packs_a) pack_a(slice.a, g_.a_row, g_.a_col, rows, slice.kc, a_packed);
      for (int64_t p = p0; p < p1; ++p) {
        T* const to = b_packed + (rows_first ? (p - p0) * slice.kc * kCols : 0);
        const In* const from = b(batch) + k * g_.b_row + p * kCols * g_.b_col;
        const int64_t cols = std::min(kCols, g_.n - p * kCols);
        Panel panel{to, kCols};
        if (packs_b || cols % kWidth<T> != 0) {
          pack_b(from, g_.b_row, g_.b_col, slice.kc, cols, to);
        } else if constexpr (kSame) {
          panel = {from, g_.b_row};
        }
        if (!rows_first) {
          const int64_t cols_left = p + 1 < p1 && packs_b ? g_.n - (p + 1) * kCols : 0;
          Ahead ahead = panel_ahead(from + kCols * g_.b_col, slice.kc, cols_left, rows);
          multiply(slice, 0, rows, p, panel, &ahead);
        }
      }
      for (int64_t r = 0; rows_first && r < rows; r += kMaxRows) {
        for (int64_t p = p0; p < p1; ++p) {
          const Panel panel{b_packed + (p - p0) * slice.kc * kCols, kCols};
          multiply(slice, r, std::min(kMaxRows, rows - r), p, panel, nullptr);
        }
      }
    }
  }

  /// The panel of B that starts at `from`, to be fetched while `rows` rows are multiplied.
  Ahead panel_ahead(const In* from, int64_t kc, int64_t cols_left, int64_t rows) const {
    constexpr int64_t kSize = static_cast<int64_t>(sizeof(In)), kPair = 128;
    const int64_t cols = std::min(kCols, cols_left);
    if (cols <= 0 || (g_.b_row != 1 && g_.b_col != 1)) return {};
    Ahead ahead;
    ahead.at = reinterpret_cast<const char*>(from);
    if (g_.b_row == 1) {  // column by column
      ahead.step = kPair, ahead.run = kc * kSize / kPair;
      ahead.to_next_run = g_.b_col * kSize - ahead.run * kPair;
      ahead.pairs = ahead.run * cols;
    } else {  // a row of a panel is a pair of lines
      ahead.step = g_.b_row * kSize, ahead.run = ahead.pairs = kc;
    }
    ahead.left_in_run = ahead.run;
    ahead.at_once = ceil_div(ahead.pairs, row_blocks(rows) * kMaxRows);
    return ahead;
  }

  /// C[rows from r on, panel p] of a piece, as far as a slice of k gives it.
  void multiply(const Slice& s, int64_t r, int64_t rows, int64_t p, Panel panel, Ahead* ahead) {
    const int64_t cols = std::min(kCols, g_.n - p * kCols);
    const bool in_place = simple_ && !s.partial && cols % kWidth<T> == 0;
    T* out = s.sums + r * s.sums_row + (p - s.first_panel) * s.sums_panel;
    int64_t out_row = s.sums_row;
    const T* bias = nullptr;
    if (in_place) {
      out = static_cast<T*>(g_.c) + s.batch * g_.c_batch + (s.first_row + r) * g_.c_row + p * kCols;
      out_row = g_.c_row;
      if (s.last && g_.bias != nullptr) bias = static_cast<const T*>(g_.bias) + p * kCols;
    }
    const bool accumulate = !s.first || (in_place && g_.beta == 1);
    if (s.a_packed != nullptr) {
      packed_gemm(rows, cols, s.kc, s.a_packed, panel.data, panel.row, out, out_row, accumulate,
                  bias, ahead);
    } else if constexpr (kSame) {
      const T* const from = s.a + r * g_.a_row;
      if (g_.a_col == 1) {
        panel_gemm<T, 0, 1>(rows, cols, s.kc, from, {g_.a_row, 1}, panel.data, panel.row, out,
                            out_row, accumulate, bias, ahead);
      } else {
        panel_gemm<T, 1, 0>(rows, cols, s.kc, from, {1, g_.a_col}, panel.data, panel.row, out,
                            out_row, accumulate, bias, ahead);
      }
    }
    if (s.last && !in_place && !s.partial) {
      finish(s.batch, s.first_row + r, rows, p * kCols, cols, out, out_row);
    }
  }

  /// Where A cannot be read in place: when neither stride is 1, when a power-of-two stride would
  /// map the rows of a register block (or the steps of k) to a few cache sets, or when many panels
  /// read the same block.
  bool must_pack_a(int64_t rows, int64_t panels) const {
    if (!kSame || (g_.a_col != 1 && g_.a_row != 1)) return true;
    const int64_t far = g_.a_col == 1 ? g_.a_row : g_.a_col;
    const bool aliases = far * static_cast<int64_t>(sizeof(T)) % 2048 == 0;
    return rows > kMaxRows &&
           (panels >= (g_.a_col == 1 ? kPackPanels : 4) || (aliases && panels >= 2));
  }

  /// Sums to C: scale, add, bias, activation.
  void finish(int64_t batch, int64_t row, int64_t rows, int64_t col, int64_t cols, const T* sums,
              int64_t sums_row) const {
    const In* bias = g_.bias != nullptr ? static_cast<const In*>(g_.bias) + col : nullptr;
    const int64_t at = batch * g_.c_batch + row * g_.c_row + col;
    if constexpr (std::is_same_v<In, float> || std::is_same_v<In, bfloat16>) {
      if (g_.alpha == 1 && g_.beta == 0 && g_.epilogue == Epilogue::kNone && !g_.wide_c &&
          cols % kLanes == 0) {
        In* const c = static_cast<In*>(g_.c) + at;
        for (int64_t j = 0; j < cols; j += kLanes) {
          const v16 add = bias != nullptr ? load16(bias + j) : v16{};
          for (int64_t r = 0; r < rows; ++r) {
            store16(c + r * g_.c_row + j, load16(sums + r * sums_row + j) + add);
          }
        }
        return;
      }
    }
    const auto to = [&](auto* c) {
      for (int64_t r = 0; r < rows; ++r) {
        finish_row(sums + r * sums_row, cols, T(g_.alpha), T(g_.beta), bias, g_.epilogue,
                   c + at + r * g_.c_row);
      }
    };
    if (!kSame && g_.wide_c) {
      to(static_cast<T*>(g_.c));
    } else {
      to(static_cast<In*>(g_.c));
    }
  }

  const MatmulCall& g_;
  int64_t strips_, panels_, slices_, row_blocks_, col_blocks_, parts_ = 1;
  int64_t partial_row_ = 0;
  bool simple_;
};

}  // namespace

void gemm(const MatmulCall& call) {
  if (call.batch == 0 || call.m == 0 || call.n == 0) return;
  switch (call.dtype) {
    case DType::kF64:
      return Gemm<double, double>(call).run();
    case DType::kF32:
      return Gemm<float, float>(call).run();
    case DType::kBF16:
      return Gemm<bfloat16, float>(call).run();
    case DType::kF16:
      return Gemm<half, float>(call).run();
    default:
      TARN_ASSERT(is_floating(call.dtype));
  }
}

}  // namespace tarn::cpu
