// gemm.cpp - the matrix product behind the stand-ins for cuBLAS and cuBLASLt.
//
// Both inputs are packed to the accumulation type, a in panels of 64 bytes of rows and b in panels
// of 4 columns; the kernel keeps a 64-byte x 4 tile of d in registers. About 30 GFLOP/s in f32 on
// one core with AVX2: a training step runs through it in tests.
#include "tarn/cuda/emu/gemm.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "tarn/core/half.h"

#if defined(__x86_64__)  // as the emulated kernels
#define TARN_EMU_WIDE __attribute__((target("arch=x86-64-v3"), optimize("O3")))
#else
#define TARN_EMU_WIDE
#endif

namespace tarn::emu {

namespace {

constexpr int kColumns = 4, kPanelBytes = 64;

template <class T>
constexpr int kRows = kPanelBytes / static_cast<int>(sizeof(T));

float round_to_tf32(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return x;
  return std::bit_cast<float>((bits + 0xfffu + (bits >> 13 & 1u)) & 0xffffe000u);
}

template <class T>
T load(const void* data, cudaDataType_t type, int64_t i) {
  switch (type) {
    case CUDA_R_64F:
      return static_cast<T>(static_cast<const double*>(data)[i]);
    case CUDA_R_16F:
      return static_cast<T>(static_cast<float>(static_cast<const half*>(data)[i]));
    case CUDA_R_16BF:
      return static_cast<T>(static_cast<float>(static_cast<const bfloat16*>(data)[i]));
    default:
      return static_cast<T>(static_cast<const float*>(data)[i]);
  }
}

template <class T>
void store(void* data, cudaDataType_t type, int64_t i, T value) {
  switch (type) {
    case CUDA_R_64F:
      static_cast<double*>(data)[i] = static_cast<double>(value);
      break;
    case CUDA_R_16F:
      static_cast<half*>(data)[i] = static_cast<float>(value);
      break;
    case CUDA_R_16BF:
      static_cast<bfloat16*>(data)[i] = static_cast<float>(value);
      break;
    default:
      static_cast<float*>(data)[i] = static_cast<float>(value);
  }
}

// Packs op(matrix), `rows` x k, as panels [rows / unit][k][unit], padded with zeros. `along_k` is
// the distance of neighbours in k, `along_row` in rows.
template <class T>
std::vector<T> pack(const Matrix& matrix, int64_t offset, int64_t rows, int64_t k,
                    int64_t along_row, int64_t along_k, int unit, bool tf32) {
  const int64_t panels = (rows + unit - 1) / unit;
  std::vector<T> packed(static_cast<std::size_t>(panels * k * unit));
  T* out = packed.data();
  for (int64_t panel = 0; panel < panels; ++panel) {
    const int64_t first = panel * unit, used = std::min<int64_t>(unit, rows - first);
    for (int64_t q = 0; q < k; ++q, out += unit) {
      for (int64_t r = 0; r < used; ++r) {
        const int64_t i = offset + (first + r) * along_row + q * along_k;
        out[r] = load<T>(matrix.data, matrix.type, i);
        if constexpr (std::is_same_v<T, float>) {
          if (tf32) out[r] = round_to_tf32(out[r]);
        }
      }
    }
  }
  return packed;
}

// tile[c][r] = sum over q of a[q][r] * b[q][c].
template <class T>
TARN_EMU_WIDE void multiply_panels(const T* a, const T* b, int64_t k, T (*tile)[kRows<T>]) {
  // g++ splits a vector of 64 bytes through memory, so it is two of 32.
  constexpr int kHalf = kRows<T> / 2;
  using Vector [[gnu::vector_size(kPanelBytes / 2), gnu::aligned(sizeof(T)), gnu::may_alias]] = T;
  Vector sums[kColumns][2] = {};
  for (int64_t q = 0; q < k; ++q) {
    const Vector low = *reinterpret_cast<const Vector*>(a + q * kRows<T>);
    const Vector high = *reinterpret_cast<const Vector*>(a + q * kRows<T> + kHalf);
    for (int c = 0; c < kColumns; ++c) {
      sums[c][0] += low * b[q * kColumns + c];
      sums[c][1] += high * b[q * kColumns + c];
    }
  }
  std::memcpy(tile, sums, sizeof sums);
}

template <class T>
T activate(T x, Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return x > 0 ? x : (x != x ? x : T(0));
    case Activation::kGelu: {  // cuBLASLt's is the tanh form
      const T inner = T(0.7978845608028654) * (x + T(0.044715) * x * x * x);
      return T(0.5) * x * (1 + std::tanh(inner));
    }
    default:
      return x;
  }
}

template <class T>
void run_one(const Gemm& g, int64_t batch) {
  const Matrix &a = g.a, &b = g.b;
  const std::vector<T> packed_a = pack<T>(a, batch * a.stride, g.m, g.k, g.transpose_a ? a.ld : 1,
                                          g.transpose_a ? 1 : a.ld, kRows<T>, g.tf32);
  const std::vector<T> packed_b = pack<T>(b, batch * b.stride, g.n, g.k, g.transpose_b ? 1 : b.ld,
                                          g.transpose_b ? b.ld : 1, kColumns, g.tf32);
  const T alpha = static_cast<T>(g.alpha), beta = static_cast<T>(g.beta);
  void* d = const_cast<void*>(g.d.data);
  T tile[kColumns][kRows<T>];
  for (int64_t j = 0; j < g.n; j += kColumns) {
    for (int64_t i = 0; i < g.m; i += kRows<T>) {
      multiply_panels<T>(packed_a.data() + i * g.k, packed_b.data() + j * g.k, g.k, tile);
      const int64_t columns = std::min<int64_t>(kColumns, g.n - j);
      const int64_t rows = std::min<int64_t>(kRows<T>, g.m - i);
      for (int64_t c = 0; c < columns; ++c) {
        for (int64_t r = 0; r < rows; ++r) {
          T value = alpha * tile[c][r];
          if (beta != 0) {
            const int64_t at = batch * g.c.stride + (j + c) * g.c.ld + i + r;
            value += beta * load<T>(g.c.data, g.c.type, at);
          }
          if (g.bias != nullptr) value += load<T>(g.bias, g.bias_type, i + r);
          store(d, g.d.type, batch * g.d.stride + (j + c) * g.d.ld + i + r,
                activate(value, g.activation));
        }
      }
    }
  }
}

bool fits(int64_t rows, int64_t ld) {
  return ld >= std::max<int64_t>(1, rows);
}

void check_matrix(const char* call, const char* name, const Matrix& matrix, int64_t rows,
                  int64_t columns, int64_t batch) {
  if (rows == 0 || columns == 0) return;
  const int64_t elements = (batch - 1) * matrix.stride + (columns - 1) * matrix.ld + rows;
  const std::string what = std::string(call) + ": matrix " + name;
  require_device_range(matrix.data, static_cast<std::size_t>(elements) * size_of(matrix.type),
                       what.c_str());
}

}  // namespace

std::size_t size_of(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_64F:
      return 8;
    case CUDA_R_32F:
      return 4;
    case CUDA_R_16F:
    case CUDA_R_16BF:
      return 2;
    default:
      return 0;
  }
}

cublasStatus_t check_gemm(const Gemm& g, cublasComputeType_t compute) {
  if (g.m < 0 || g.n < 0 || g.k < 0 || g.batch < 0) return CUBLAS_STATUS_INVALID_VALUE;
  if (!fits(g.transpose_a ? g.k : g.m, g.a.ld) || !fits(g.transpose_b ? g.n : g.k, g.b.ld) ||
      !fits(g.m, g.c.ld) || !fits(g.m, g.d.ld)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const cudaDataType_t in = g.a.type, out = g.d.type;
  if (g.b.type != in || g.c.type != out) return CUBLAS_STATUS_NOT_SUPPORTED;
  switch (compute) {
    case CUBLAS_COMPUTE_64F:
    case CUBLAS_COMPUTE_64F_PEDANTIC:
      return in == CUDA_R_64F && out == CUDA_R_64F ? CUBLAS_STATUS_SUCCESS
                                                   : CUBLAS_STATUS_NOT_SUPPORTED;
    case CUBLAS_COMPUTE_32F_FAST_TF32:
      return in == CUDA_R_32F && out == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS
                                                   : CUBLAS_STATUS_NOT_SUPPORTED;
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC: {
      const bool narrow = in == CUDA_R_16F || in == CUDA_R_16BF;
      const bool known = in == CUDA_R_32F || narrow;
      return known && (out == CUDA_R_32F || (narrow && out == in)) ? CUBLAS_STATUS_SUCCESS
                                                                   : CUBLAS_STATUS_NOT_SUPPORTED;
    }
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

void check_gemm_memory(const Gemm& g, const char* call) {
  if (g.m == 0 || g.n == 0 || g.batch == 0) return;
  if (g.k > 0) {
    check_matrix(call, "A", g.a, g.transpose_a ? g.k : g.m, g.transpose_a ? g.m : g.k, g.batch);
    check_matrix(call, "B", g.b, g.transpose_b ? g.n : g.k, g.transpose_b ? g.k : g.n, g.batch);
  }
  if (g.beta != 0) check_matrix(call, "C", g.c, g.m, g.n, g.batch);
  check_matrix(call, "the result", g.d, g.m, g.n, g.batch);
  const int64_t span = (g.n - 1) * g.d.ld + g.m;
  if (g.batch > 1 && g.d.stride < span && !(g.d.stride >= g.m && g.d.ld >= g.d.stride * g.batch)) {
    die("%s: the results of a batch overlap", call);
  }
  if (g.bias != nullptr) {
    require_device_range(g.bias, static_cast<std::size_t>(g.m) * size_of(g.bias_type), call);
  }
}

void run_gemm(const Gemm& gemm) {
  for (int64_t batch = 0; batch < gemm.batch; ++batch) {
    if (gemm.a.type == CUDA_R_64F) {
      run_one<double>(gemm, batch);
    } else {
      run_one<float>(gemm, batch);
    }
  }
}

void spoil_workspace(void* workspace, std::size_t bytes) {
  constexpr std::size_t kEnough = 4096;  // to show up in whatever shares it
  std::memset(workspace, 0xff, std::min(bytes, kEnough));
}

}  // namespace tarn::emu
