// blas_lt.cpp - matrix products with a fused bias or GELU by cuBLASLt, one cached plan per shape.
#include "tarn/cuda/blas_api.h"

#if TARN_HAVE_CUBLAS

#include <algorithm>
#include <array>
#include <map>
#include <memory>

#include "tarn/core/allocator.h"

namespace tarn::cuda {
namespace {

constexpr size_t kMostPlans = 1024;

/// Everything an algorithm depends on. Alignments as well: it may use wide loads.
using Key = std::array<int64_t, 20>;

int64_t alignment_of(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  constexpr uintptr_t kMost = 256;
  return static_cast<int64_t>(address == 0 ? kMost : std::min(address & (~address + 1), kMost));
}

Key key_of(const MatmulCall& call, const BlasShape& s, bool fused) {
  return {static_cast<int64_t>(s.type) << 32 | s.compute,
          call.bias != nullptr,
          fused,
          s.left_op == CUBLAS_OP_N,
          s.right_op == CUBLAS_OP_N,
          call.batch,
          call.m,
          call.n,
          call.k,
          s.left_ld,
          s.right_ld,
          s.out_ld,
          call.a_batch,
          call.b_batch,
          call.c_batch,
          call.beta != 0,
          alignment_of(call.a),
          alignment_of(call.b),
          alignment_of(call.c),
          alignment_of(call.bias)};
}

/// A described product and the algorithm for it, if there is one.
struct Plan {
  explicit Plan(const BlasApi& a) : api(a) {}
  ~Plan() {
    for (const auto layout : {left, right, out}) {
      if (layout) api.cublasLtMatrixLayoutDestroy(layout);
    }
    if (op) api.cublasLtMatmulDescDestroy(op);
    if (preference) api.cublasLtMatmulPreferenceDestroy(preference);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  const BlasApi& api;
  cublasLtMatmulDesc_t op = nullptr;
  cublasLtMatrixLayout_t left = nullptr, right = nullptr, out = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};
  size_t workspace = 0;
  bool exists = false;
};

/// Makes plans; holds what every call in it reports.
class Planner {
 public:
  Planner(const BlasApi& api, const MatmulCall& call, const BlasShape& shape, Device device)
      : api_(api), call_(call), shape_(shape), device_(device) {}

  std::unique_ptr<Plan> make(cublasLtHandle_t handle, bool fused, size_t workspace_bytes) {
    auto plan = std::make_unique<Plan>(api_);
    describe(*plan, fused);
    prefer(*plan, workspace_bytes);
    cublasLtMatmulHeuristicResult_t result = {};
    int found = 0;
    const cublasStatus_t status =
        api_.cublasLtMatmulAlgoGetHeuristic(handle, plan->op, plan->left, plan->right, plan->out,
                                            plan->out, plan->preference, 1, &result, &found);
    // Some releases call a product that they have nothing for an invalid one.
    if (status != CUBLAS_STATUS_SUCCESS && status != CUBLAS_STATUS_NOT_SUPPORTED &&
        status != CUBLAS_STATUS_INVALID_VALUE) {
      fail_blas(api_, status, "cublasLtMatmulAlgoGetHeuristic", call_, device_);
    }
    plan->exists = status == CUBLAS_STATUS_SUCCESS && found > 0;
    plan->algorithm = result.algo;
    plan->workspace = result.workspaceSize;
    return plan;
  }

  void set_bias(Plan& plan) { set(plan.op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, call_.bias); }

 private:
  void describe(Plan& plan, bool fused) {
    const BlasShape& s = shape_;
    const cudaDataType scalars = s.is_f64() ? CUDA_R_64F : CUDA_R_32F;
    TARN_BLAS_CALL(api_, call_, device_, cublasLtMatmulDescCreate, &plan.op, s.compute, scalars);
    set(plan.op, CUBLASLT_MATMUL_DESC_TRANSA, static_cast<int32_t>(s.left_op));
    set(plan.op, CUBLASLT_MATMUL_DESC_TRANSB, static_cast<int32_t>(s.right_op));
    uint32_t epilogue = fused ? CUBLASLT_EPILOGUE_GELU : CUBLASLT_EPILOGUE_DEFAULT;
    if (call_.bias != nullptr) {
      epilogue = fused ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
      set_bias(plan);
    }
    set(plan.op, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    layout(plan.left, s.left_op, s.rows, s.depth, s.left_ld, call_.b_batch);
    layout(plan.right, s.right_op, s.depth, s.cols, s.right_ld, call_.a_batch);
    layout(plan.out, CUBLAS_OP_N, s.rows, s.cols, s.out_ld, call_.c_batch);
  }

  void prefer(Plan& plan, size_t workspace_bytes) {
    TARN_BLAS_CALL(api_, call_, device_, cublasLtMatmulPreferenceCreate, &plan.preference);
    prefer(plan, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes));
    // Parts of a split k meet in the type they were summed in, never in halves.
    prefer(plan, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    const auto alignment = [](const void* p) { return static_cast<uint32_t>(alignment_of(p)); };
    prefer(plan, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(call_.b));
    prefer(plan, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(call_.a));
    prefer(plan, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(call_.c));
    prefer(plan, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(call_.c));
  }

  /// A matrix that is [rows, cols] after the operation.
  void layout(cublasLtMatrixLayout_t& made, cublasOperation_t op, int rows, int cols, int64_t ld,
              int64_t batch_stride) {
    const bool plain = op == CUBLAS_OP_N;
    TARN_BLAS_CALL(api_, call_, device_, cublasLtMatrixLayoutCreate, &made, shape_.type,
                   static_cast<uint64_t>(plain ? rows : cols),
                   static_cast<uint64_t>(plain ? cols : rows), ld);
    if (shape_.batch == 1) return;
    const int32_t batch = shape_.batch;
    TARN_BLAS_CALL(api_, call_, device_, cublasLtMatrixLayoutSetAttribute, made,
                   CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof(batch));
    TARN_BLAS_CALL(api_, call_, device_, cublasLtMatrixLayoutSetAttribute, made,
                   CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_stride,
                   sizeof(batch_stride));
  }

  template <class V>
  void set(cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t attribute, const V& value) {
    TARN_BLAS_CALL(api_, call_, device_, cublasLtMatmulDescSetAttribute, op, attribute, &value,
                   sizeof(value));
  }
  template <class V>
  void prefer(Plan& plan, cublasLtMatmulPreferenceAttributes_t attribute, const V& value) {
    TARN_BLAS_CALL(api_, call_, device_, cublasLtMatmulPreferenceSetAttribute, plan.preference,
                   attribute, &value, sizeof(value));
  }

  const BlasApi& api_;
  const MatmulCall& call_;
  const BlasShape& shape_;
  Device device_;
};

}  // namespace

struct BlasLt::Impl {
  cublasLtHandle_t handle = nullptr;
  std::map<Key, std::unique_ptr<Plan>> plans;
};

bool BlasLt::matmul(const BlasApi& api, const MatmulCall& call, const BlasShape& shape,
                    bool fused_activation, void* workspace, size_t workspace_bytes, Stream stream) {
  // The heuristic cannot be told how the bias lies, and its kernels read it with wide loads.
  constexpr int64_t kBiasAlignment = 16;
  if (call.bias != nullptr && alignment_of(call.bias) < kBiasAlignment) return false;
  if (!impl_) {
    auto made = std::make_unique<Impl>();
    cublasStatus_t status = api.cublasLtCreate(&made->handle);
    if (status == CUBLAS_STATUS_ALLOC_FAILED || status == CUBLAS_STATUS_NOT_INITIALIZED) {
      empty_cache(stream.device);  // as for cublasCreate
      status = api.cublasLtCreate(&made->handle);
    }
    if (status != CUBLAS_STATUS_SUCCESS) {
      fail_blas(api, status, "cublasLtCreate", call, stream.device);
    }
    impl_ = made.release();
  }
  Planner planner(api, call, shape, stream.device);
  const Key key = key_of(call, shape, fused_activation);
  auto found = impl_->plans.find(key);
  if (found == impl_->plans.end()) {
    if (impl_->plans.size() == kMostPlans) impl_->plans.clear();
    found =
        impl_->plans.emplace(key, planner.make(impl_->handle, fused_activation, workspace_bytes))
            .first;
  }
  Plan& plan = *found->second;
  if (!plan.exists) return false;
  if (call.bias != nullptr) planner.set_bias(plan);
  const BlasScalar alpha(call.alpha), beta(call.beta);
  const cublasStatus_t status =
      api.cublasLtMatmul(impl_->handle, plan.op, alpha.get(shape), call.b, plan.left, call.a,
                         plan.right, beta.get(shape), call.c, plan.out, call.c, plan.out,
                         &plan.algorithm, workspace, plan.workspace, raw_stream(stream));
  plan.exists = status != CUBLAS_STATUS_NOT_SUPPORTED;  // else not on this GPU after all
  if (plan.exists && status != CUBLAS_STATUS_SUCCESS) {
    fail_blas(api, status, "cublasLtMatmul", call, stream.device);
  }
  return plan.exists;
}

}  // namespace tarn::cuda

#endif
