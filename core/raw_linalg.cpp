// raw_linalg.cpp - checks, batches and the way to the CPU and back for dense linear algebra.
#include "tarn/core/raw_linalg.h"

#include "tarn/core/factory.h"
#include "tarn/core/kernel_call.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"

namespace tarn::raw {
namespace {

Shape batch_of(const Tensor& a) {
  return Shape(a.sizes().data(), static_cast<size_t>(a.dim() - 2));
}

Shape with(Shape batch, std::initializer_list<int64_t> more) {
  for (const int64_t size : more) batch.push_back(size);
  return batch;
}

void check_matrices(const char* op, const char* name, const Tensor& a) {
  check_defined(op, name, a);
  TARN_CHECK_AS(DTypeError, a.dtype() == DType::kF32 || a.dtype() == DType::kF64, op, ": ", name,
                " must be f32 or f64; got ", name, "=", a.describe(),
                "; convert it with to(DType::kF32)");
  TARN_CHECK_AS(ShapeError, a.dim() >= 2, op, ": ", name,
                " must be a matrix or a batch of them, [.., M, N]; got ", name, "=", a.describe());
}

void check_square(const char* op, const Tensor& a) {
  check_matrices(op, "a", a);
  const int64_t rows = a.size(-2), cols = a.size(-1);
  TARN_CHECK_AS(ShapeError, rows == cols, op,
                ": a must be square, [.., N, N]; got a=", a.describe(), " (", rows, " rows, ", cols,
                " columns)");
}

// a as the kernels want it: on the CPU, dense, its batch one dimension.
Tensor flat(const Tensor& a) {
  const Tensor here = a.device().is_cpu() ? a : to(a, kCPU);
  return reshape(contiguous(here), {batch_of(a).numel(), a.size(-2), a.size(-1)});
}

// A result on the CPU, and what a kernel sees of it: [B, more...].
struct Result {
  Tensor whole, flat;
  Result(const Tensor& a, std::initializer_list<int64_t> more)
      : whole(empty(with(batch_of(a), more), {.dtype = a.dtype()})),
        flat(view(whole, with(Shape{batch_of(a).numel()}, more))) {}
  Tensor on(Device device) const { return device.is_cpu() ? whole : to(whole, device); }
};

// Reports the first matrix of the batch that could not be computed.
class Info {
 public:
  explicit Info(const Tensor& a)
      : tensor_(zeros({batch_of(a).numel()}, {.dtype = DType::kI64})), batch_(batch_of(a)) {}
  const Tensor& tensor() const { return tensor_; }
  void check(const char* op, const Tensor& a, const char* what) const {
    const int64_t* info = tensor_.data<int64_t>();
    for (int64_t i = 0; i < tensor_.numel(); ++i) {
      if (info[i] == 0) continue;
      TARN_CHECK_AS(ValueError, !batch_.empty(), op, ": the matrix ", what,
                    "; got a=", a.describe());
      Shape index = batch_;
      int64_t rest = i;
      for (int d = batch_.dim() - 1; d >= 0; --d) {
        index[d] = rest % batch_[d];
        rest /= batch_[d];
      }
      detail::fail<ValueError>(op, ": matrix ", index, " of the batch ", what,
                               "; got a=", a.describe());
    }
  }

 private:
  Tensor tensor_;
  Shape batch_;
};

constexpr const char* kSingular = "is singular";
constexpr const char* kNotConverged = "has a decomposition that does not converge";

}  // namespace

Tensor cholesky(const Tensor& a) {
  check_square("cholesky", a);
  const Result out(a, {a.size(-2), a.size(-1)});
  if (out.whole.numel() > 0) {
    const Info info(a);
    TARN_KERNEL(linalg, cholesky, kCPU, flat(a), out.flat, info.tensor());
    info.check("cholesky", a, "is not positive definite");
  }
  return out.on(a.device());
}

Tensor inv(const Tensor& a) {
  check_square("inv", a);
  const Result out(a, {a.size(-2), a.size(-1)});
  if (out.whole.numel() > 0) {
    const Info info(a);
    TARN_KERNEL(linalg, inv, kCPU, flat(a), out.flat, info.tensor());
    info.check("inv", a, kSingular);
  }
  return out.on(a.device());
}

Tensor det(const Tensor& a) {
  check_square("det", a);
  const Result out(a, {});
  if (a.numel() > 0) {
    TARN_KERNEL(linalg, det, kCPU, flat(a), out.flat);
  } else {
    fill_(out.whole, 1.0);  // the empty product
  }
  return out.on(a.device());
}

std::pair<Tensor, Tensor> slogdet(const Tensor& a) {
  check_square("slogdet", a);
  const Result sign(a, {}), logabs(a, {});
  if (a.numel() > 0) {
    TARN_KERNEL(linalg, slogdet, kCPU, flat(a), sign.flat, logabs.flat);
  } else {
    fill_(sign.whole, 1.0);
    fill_(logabs.whole, 0.0);
  }
  return {sign.on(a.device()), logabs.on(a.device())};
}

std::pair<Tensor, Tensor> qr(const Tensor& a) {
  check_matrices("qr", "a", a);
  const int64_t m = a.size(-2), n = a.size(-1), k = std::min(m, n);
  const Result q(a, {m, k}), r(a, {k, n});
  if (a.numel() > 0) TARN_KERNEL(linalg, qr, kCPU, flat(a), q.flat, r.flat);
  return {q.on(a.device()), r.on(a.device())};
}

std::pair<Tensor, Tensor> eigh(const Tensor& a) {
  check_square("eigh", a);
  const int64_t n = a.size(-1);
  const Result values(a, {n}), vectors(a, {n, n});
  if (a.numel() > 0) {
    const Info info(a);
    TARN_KERNEL(linalg, eigh, kCPU, flat(a), values.flat, vectors.flat, info.tensor());
    info.check("eigh", a, kNotConverged);
  }
  return {values.on(a.device()), vectors.on(a.device())};
}

std::tuple<Tensor, Tensor, Tensor> svd(const Tensor& a) {
  check_matrices("svd", "a", a);
  const int64_t m = a.size(-2), n = a.size(-1), k = std::min(m, n);
  const Result u(a, {m, k}), s(a, {k}), vh(a, {k, n});
  if (a.numel() > 0) {
    const Info info(a);
    TARN_KERNEL(linalg, svd, kCPU, flat(a), u.flat, s.flat, vh.flat, info.tensor());
    info.check("svd", a, kNotConverged);
  }
  return {u.on(a.device()), s.on(a.device()), vh.on(a.device())};
}

bool is_vector_for(const Tensor& a, const Tensor& b) {
  if (b.dim() == 1) return true;
  return b.dim() == a.dim() - 1 &&
         std::equal(b.sizes().begin(), b.sizes().end(), a.sizes().begin());
}

Shape check_solve(const Tensor& a, const Tensor& b) {
  check_square("solve", a);
  check_defined("solve", "b", b);
  check_same_device("solve", a, b);
  TARN_CHECK_AS(DTypeError, a.dtype() == b.dtype(),
                "solve: a and b must have one dtype; got a=", a.describe(), ", b=", b.describe());
  const bool vector = b.dim() >= 1 && is_vector_for(a, b);
  const int64_t n = a.size(-1);
  TARN_CHECK_AS(ShapeError, vector || b.dim() >= 2,
                "solve: b must be a vector or matrices, [N] or [.., N, K]; got a=", a.describe(),
                ", b=", b.describe());
  const int64_t rows = b.size(vector ? -1 : -2);
  TARN_CHECK_AS(ShapeError, rows == n, "solve: b must have as many rows as a; got a=", a.describe(),
                ", b=", b.describe(), " (", n, " vs ", rows, ")");
  return vector ? batch_of(a) : broadcast_shapes("solve", batch_of(a), batch_of(b));
}

Tensor solve(const Tensor& a, const Tensor& b) {
  TARN_ASSERT(batch_of(a) == batch_of(b) && a.size(-1) == b.size(-2));
  const Result x(b, {b.size(-2), b.size(-1)});
  if (x.whole.numel() > 0) {
    const Info info(a);
    TARN_KERNEL(linalg, solve, kCPU, flat(a), flat(b), x.flat, info.tensor());
    info.check("solve", a, kSingular);
  }
  return x.on(a.device());
}

}  // namespace tarn::raw
