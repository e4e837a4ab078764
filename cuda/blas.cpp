// blas.cpp - the matmul slot on cuBLAS: handles, workspaces, and which call a product becomes.
#include "tarn/cuda/blas.h"

#include "tarn/core/error.h"
#include "tarn/cuda/blas_api.h"
#include "tarn/cuda/library.h"

#if TARN_HAVE_CUBLAS

#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "tarn/core/allocator.h"
#include "tarn/core/math_mode.h"

namespace tarn::cuda {
namespace {

#if defined(TARN_CUDA_EMU)
constexpr size_t kWorkspace = size_t{64} << 10;  // the stand-in overwrites all of it at every call
#else
constexpr size_t kWorkspace = size_t{32} << 20;  // what NVIDIA recommends for Hopper
#endif
constexpr size_t kWorkspaceAlignment = 256;
constexpr size_t kMostWorkspaces = 8;  // streams of one device that keep theirs

/// One device's handle, and what its streams own. Calls are ordered by the mutex: a handle carries
/// one stream and one workspace at a time.
struct BlasDevice {
  std::mutex mutex;
  cublasHandle_t handle = nullptr;
  std::optional<void*> stream;  // the one that the handle is set to
  std::unordered_map<void*, Allocation> workspaces;
  BlasLt lt;
};

BlasDevice& blas_device(int index) {
  static auto& devices = *[] {
    auto* all = new std::vector<std::unique_ptr<BlasDevice>>;
    for (int i = 0; i < device_count(); ++i) all->push_back(std::make_unique<BlasDevice>());
    return all;
  }();
  return *devices[static_cast<size_t>(index)];
}

void create_handle(const BlasApi& api, BlasDevice& device, const MatmulCall& call, Stream stream) {
  cublasStatus_t status = api.cublasCreate_v2(&device.handle);
  if (status == CUBLAS_STATUS_ALLOC_FAILED || status == CUBLAS_STATUS_NOT_INITIALIZED) {
    // The library allocates beside our cache, which may hold all there is.
    empty_cache(stream.device);
    status = api.cublasCreate_v2(&device.handle);
  }
  if (status != CUBLAS_STATUS_SUCCESS) {
    device.handle = nullptr;
    fail_blas(api, status, "cublasCreate", call, stream.device);
  }
  const auto mode = static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH |
                                              CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
  TARN_BLAS_CALL(api, call, stream.device, cublasSetMathMode, device.handle, mode);
}

void* workspace_of(BlasDevice& device, Stream stream) {
  auto found = device.workspaces.find(stream.handle);
  if (found == device.workspaces.end()) {
    if (device.workspaces.size() == kMostWorkspaces) {
      for (const auto& [owner, memory] : device.workspaces) deallocate(memory, stream.device);
      device.workspaces.clear();
      device.stream
          .reset();  // or, if what follows throws, the handle would keep a workspace of old
    }
    const MemoryTagGuard tag(MemoryTag::kWorkspace);
    const Allocation memory = allocate(kWorkspace + kWorkspaceAlignment, stream);
    found = device.workspaces.emplace(stream.handle, memory).first;
  }
  const auto address = reinterpret_cast<uintptr_t>(found->second.ptr);
  return reinterpret_cast<void*>((address + kWorkspaceAlignment - 1) / kWorkspaceAlignment *
                                 kWorkspaceAlignment);
}

/// Points the device's handle to the stream and its workspace, which it returns.
void* select(const BlasApi& api, BlasDevice& device, const MatmulCall& call, Stream stream) {
  set_device(stream.device.index);
  if (!device.handle) create_handle(api, device, call, stream);
  void* workspace = workspace_of(device, stream);
  if (device.stream != stream.handle) {
    device.stream.reset();
    TARN_BLAS_CALL(api, call, stream.device, cublasSetStream_v2, device.handle, raw_stream(stream));
    // After the stream: setting that resets the workspace.
    TARN_BLAS_CALL(api, call, stream.device, cublasSetWorkspace_v2, device.handle, workspace,
                   kWorkspace);
    device.stream = stream.handle;
  }
  return workspace;
}

cudaDataType blas_type(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return CUDA_R_64F;
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kBF16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_32F;
  }
}

/// How the library must see a matrix of `rows` rows; false if its strides do not fit.
bool describe(int64_t rows, int64_t cols, int64_t row, int64_t col, cublasOperation_t& op,
              int64_t& ld) {
  if (col == 1 && (row >= cols || rows == 1)) {
    op = CUBLAS_OP_N;
    ld = std::max(row, cols);
    return true;
  }
  if (row == 1 && (col >= rows || cols == 1)) {
    op = CUBLAS_OP_T;
    ld = std::max(col, rows);
    return true;
  }
  return false;
}

/// The product in the library's terms, or nothing if it is one for the own kernels.
std::optional<BlasShape> blas_shape(const MatmulCall& call) {
  BlasShape shape;
  if (!is_floating(call.dtype) || call.k == 0) return std::nullopt;
  if (call.bias != nullptr && call.beta != 0) return std::nullopt;  // nobody asks for it
  if (!describe(call.k, call.n, call.b_row, call.b_col, shape.left_op, shape.left_ld) ||
      !describe(call.m, call.k, call.a_row, call.a_col, shape.right_op, shape.right_ld)) {
    return std::nullopt;
  }
  shape.out_ld = std::max(call.c_row, call.n);
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  for (const int64_t size :
       {call.batch, call.m, call.n, call.k, shape.left_ld, shape.right_ld, shape.out_ld}) {
    if (size > kMost) return std::nullopt;
  }
  shape.rows = static_cast<int>(call.n), shape.cols = static_cast<int>(call.m);
  shape.depth = static_cast<int>(call.k), shape.batch = static_cast<int>(call.batch);
  shape.type = blas_type(call.dtype);
  shape.compute = call.dtype == DType::kF64                   ? CUBLAS_COMPUTE_64F
                  : call.dtype == DType::kF32 && allow_tf32() ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                              : CUBLAS_COMPUTE_32F;
  return shape;
}

/// C = alpha * A B + beta * C.
void gemm(const BlasApi& api, cublasHandle_t handle, const MatmulCall& call, double beta,
          const BlasShape& s, Device device) {
  const BlasScalar alpha(call.alpha), factor(beta);
  const int left_ld = static_cast<int>(s.left_ld), right_ld = static_cast<int>(s.right_ld);
  const int out_ld = static_cast<int>(s.out_ld);
  if (s.batch == 1) {
    TARN_BLAS_CALL(api, call, device, cublasGemmEx, handle, s.left_op, s.right_op, s.rows, s.cols,
                   s.depth, alpha.get(s), call.b, s.type, left_ld, call.a, s.type, right_ld,
                   factor.get(s), call.c, s.type, out_ld, s.compute, CUBLAS_GEMM_DEFAULT);
  } else {
    TARN_BLAS_CALL(api, call, device, cublasGemmStridedBatchedEx, handle, s.left_op, s.right_op,
                   s.rows, s.cols, s.depth, alpha.get(s), call.b, s.type, left_ld, call.b_batch,
                   call.a, s.type, right_ld, call.a_batch, factor.get(s), call.c, s.type, out_ld,
                   call.c_batch, s.batch, s.compute, CUBLAS_GEMM_DEFAULT);
  }
}

/// The product in one or two launches; true if the activation is still to come.
bool multiply(const BlasApi& api, const MatmulCall& call, const BlasShape& shape, Stream stream) {
  BlasDevice& device = blas_device(stream.device.index);
  const std::lock_guard lock(device.mutex);
  void* workspace = select(api, device, call, stream);
  // Their GELU is the tanh form; their ReLU makes no promise about NaN.
  const bool fused = call.epilogue == Epilogue::kGeluTanh;
  if (api.has_lt && (call.bias != nullptr || fused) &&
      device.lt.matmul(api, call, shape, fused, workspace, kWorkspace, stream)) {
    return !fused;
  }
  double beta = call.beta;
  if (call.bias != nullptr) {  // then the call's own beta is 0: the bias takes C's place
    spread_bias(call, stream);
    beta = 1;
  }
  gemm(api, device.handle, call, beta, shape, stream.device);
  return true;
}

void blas_matmul(const Tensor& a, const Tensor& b, const Tensor& bias, double alpha, double beta,
                 Epilogue epilogue, const Tensor& out, Stream stream) {
  const MatmulCall call = make_matmul_call(a, b, bias, alpha, beta, epilogue, out);
  if (call.batch == 0 || call.m == 0 || call.n == 0) return;
  const std::optional<BlasShape> shape = blas_shape(call);
  const BlasApi* api = shape ? blas_api() : nullptr;
  if (!api) {
    own_matmul(call, stream);
    return;
  }
  if (multiply(*api, call, *shape, stream)) apply_epilogue(call, stream);
}

}  // namespace

void add_blas_kernels(KernelTable& table) {
  if (library_use("TARN_CUBLAS") == LibraryUse::kOff) return;
  table.matmul.matmul = blas_matmul;
}

}  // namespace tarn::cuda

#else

namespace tarn::cuda {

void add_blas_kernels(KernelTable&) {
  TARN_CHECK(library_use("TARN_CUBLAS") != LibraryUse::kOn,
             "cuda: cuBLAS is required by TARN_CUBLAS=on, but this build was made without it "
             "(TARN_CUBLAS=OFF, or no cublas_v2.h and cublasLt.h)");
}

}  // namespace tarn::cuda

#endif
