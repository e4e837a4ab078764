// account.cpp - counting stand-ins for every slot of the kernel table.
#include "tarn/apps/bench/account.h"

#include <type_traits>
#include <utility>

#include "tarn/core/kernel_work.h"
#include "tarn/core/kernels.h"

namespace tarn::bench {

Cost& Cost::operator+=(const Cost& other) {
  calls += other.calls;
  bytes += other.bytes;
  flops += other.flops;
  saved_bytes += other.saved_bytes;
  saved_calls += other.saved_calls;
  products |= other.products;
  return *this;
}

namespace {

Account* counting = nullptr;

double size_of(const Tensor& x) {
  return x.defined() ? static_cast<double>(x.numel() * item_size(x.dtype())) : 0;
}
double count_of(const Tensor& x) {
  return static_cast<double>(x.numel());
}
template <class... T>
double sizes_of(const T&... x) {
  return (size_of(x) + ...);
}
double sizes_of(std::span<const Tensor> list) {
  double total = 0;
  for (const Tensor& x : list) total += size_of(x);
  return total;
}
template <class... T>
double lists_of(const T&... lists) {
  return (sizes_of(std::span<const Tensor>(lists)) + ...);
}

double plan_count(const ElementwisePlan& plan) {
  return static_cast<double>(plan.numel);
}

struct Counted {
  DType dtype = DType::kF32;
  Cost cost{};
};

Counted elementwise(const ElementwisePlan& plan, double flops_each) {
  return {plan.dtype[0], {.bytes = plan_bytes(plan), .flops = flops_each * plan_count(plan)}};
}
Counted moved(const Tensor& out, double bytes, double flops = 0) {
  return {out.dtype(), {.bytes = bytes, .flops = flops}};
}

// relu and residual fused into batch norm: each would read and write the result once more, the
// residual itself is read either way.
Counted batch_norm(const Tensor& y, double bytes, bool relu, bool residual) {
  Counted c = moved(y, bytes, 8 * count_of(y));
  c.cost.saved_calls = relu + residual;
  c.cost.saved_bytes = 2 * size_of(y) * (relu + residual);
  return c;
}

// A function pointer of a slot's type that calls `Count` on the arguments and does nothing else.
template <class Slot, class Count>
struct StandIn;
template <class... A, class Count>
struct StandIn<void (*)(A...), Count> {
  static inline const char* name = "";
  static void call(A... args) {
    Counted counted = Count{}(args...);
    counted.cost.calls = 1;
    (*counting)[{name, counted.dtype}] += counted.cost;
  }
};

template <class Slot, class Count>
void replace(Slot& slot, const char* name, Count) {
  static_assert(std::is_empty_v<Count>, "a capture would be lost");
  StandIn<Slot, Count>::name = name;
  slot = StandIn<Slot, Count>::call;
}
#define TARN_COUNT(slot, ...) replace(table.slot, #slot, __VA_ARGS__)

using T = const Tensor&;
using Plan = const ElementwisePlan&;
using List = std::span<const Tensor>;

void count_elementwise(KernelTable& table) {
  TARN_COUNT(elementwise.unary,
             [](UnaryOp, const Scalars&, Plan p, Stream) { return elementwise(p, 4); });
  TARN_COUNT(elementwise.unary_backward,
             [](UnaryOp, int, const Scalars&, Plan p, Stream) { return elementwise(p, 6); });
  TARN_COUNT(elementwise.binary, [](BinaryOp, Plan p, Stream) { return elementwise(p, 1); });
  TARN_COUNT(elementwise.where, [](Plan p, Stream) { return elementwise(p, 1); });
  TARN_COUNT(elementwise.ternary,
             [](TernaryOp, const Scalars&, Plan p, Stream) { return elementwise(p, 2); });
  TARN_COUNT(elementwise.copy, [](Plan p, Stream) { return elementwise(p, 0); });
  TARN_COUNT(elementwise.fill, [](const Scalar&, Plan p, Stream) { return elementwise(p, 0); });
  TARN_COUNT(elementwise.arange,
             [](const Scalar&, const Scalar&, T out, Stream) { return moved(out, size_of(out)); });
}

void count_reductions(KernelTable& table) {
  TARN_COUNT(reduce.reduce, [](ReduceOp, T x, double, T out, Stream) {
    return moved(x, sizes_of(x, out), count_of(x));
  });
  TARN_COUNT(reduce.var_mean, [](T x, double, T var, T mean, Stream) {
    return moved(x, sizes_of(x, var, mean), 4 * count_of(x));
  });
  TARN_COUNT(reduce.arg_reduce, [](bool, T x, int64_t, T values, T index, Stream) {
    return moved(x, sizes_of(x, values, index), count_of(x));
  });
  TARN_COUNT(reduce.cumulative, [](bool, T x, int64_t, T out, Stream) {
    return moved(x, sizes_of(x, out), count_of(x));
  });
  TARN_COUNT(reduce.topk, [](T x, int64_t, int64_t, bool, T values, T index, Stream) {
    return moved(x, sizes_of(x, values, index), count_of(x));
  });
  TARN_COUNT(softmax.softmax, [](T x, int64_t, bool, T y, Stream) {
    return moved(x, sizes_of(x, y), 5 * count_of(x));
  });
  TARN_COUNT(softmax.softmax_backward, [](T gy, T y, int64_t, bool, T gx, Stream) {
    return moved(y, sizes_of(gy, y, gx), 4 * count_of(y));
  });
  // Unfused: log_softmax writes the logarithms, the loss gathers from them.
  TARN_COUNT(softmax.cross_entropy,
             [](T x, T target, T w, int64_t, double, T loss, T stats, T totals, Stream) {
               Counted c = moved(x, sizes_of(x, target, w, loss, stats, totals), 5 * count_of(x));
               c.cost.saved_calls = 1;
               c.cost.saved_bytes = size_of(x);
               return c;
             });
  TARN_COUNT(softmax.cross_entropy_backward,
             [](T gloss, T x, T target, T w, int64_t, double, T stats, T gx, Stream) {
               Counted c = moved(x, sizes_of(gloss, x, target, w, stats, gx), 4 * count_of(x));
               c.cost.saved_calls = 1;
               c.cost.saved_bytes = 2 * size_of(x);
               return c;
             });
}

void count_norms(KernelTable& table) {
  // The statistics need a pass of their own: x is read twice.
  TARN_COUNT(norm.batch_norm_train,
             [](T x, T w, T b, T residual, bool relu, double, T y, T mean, T rstd, T var, Stream) {
               const double bytes = sizes_of(x, x, y, w, b, residual, mean, rstd, var);
               return batch_norm(y, bytes, relu, residual.defined());
             });
  TARN_COUNT(
      norm.batch_norm_eval, [](T x, T w, T b, T residual, bool relu, T mean, T rstd, T y, Stream) {
        return batch_norm(y, sizes_of(x, w, b, residual, mean, rstd, y), relu, residual.defined());
      });
  TARN_COUNT(norm.batch_norm_backward, [](T gy, T x, T y, T w, T b, T mean, T rstd, bool relu, bool,
                                          T gx, T gw, T gb, T gresidual, Stream) {
    const double inputs = sizes_of(gy, gy, x, x, y, y, w, b, mean, rstd);
    return batch_norm(gx.defined() ? gx : gy, inputs + sizes_of(gx, gw, gb, gresidual), relu,
                      false);
  });
  TARN_COUNT(norm.layer_norm,
             [](T x, T residual, T w, T b, double, T sum, T y, T mean, T rstd, Stream) {
               return moved(x, sizes_of(x, residual, w, b, sum, y, mean, rstd), 8 * count_of(x));
             });
  TARN_COUNT(norm.layer_norm_backward,
             [](T gy, T gsum, T x, T w, T mean, T rstd, T gx, T gw, T gb, Stream) {
               return moved(x, sizes_of(gy, gsum, x, w, mean, rstd, gx, gw, gb), 12 * count_of(x));
             });
}

void count_products(KernelTable& table) {
  TARN_COUNT(matmul.matmul,
             [](T a, T b, T bias, double, double beta, Epilogue epilogue, T out, Stream) {
               Counted c = moved(out, sizes_of(a, b, bias, out) + (beta != 0 ? size_of(out) : 0),
                                 2 * count_of(out) * static_cast<double>(a.size(-1)));
               const int fused = bias.defined() + (epilogue != Epilogue::kNone);
               c.cost.saved_calls = fused;
               c.cost.saved_bytes = 2 * size_of(out) * fused;
               c.cost.products = true;
               return c;
             });
  TARN_COUNT(conv.forward, [](T x, T w, T bias, const Conv2dOptions&, T y, Stream) {
    Counted c = moved(y, sizes_of(x, w, bias, y), conv_flops(w, y));
    c.cost.products = true;
    return c;
  });
  TARN_COUNT(conv.backward_data, [](T gy, T w, const Conv2dOptions&, T gx, Stream) {
    Counted c = moved(gx, sizes_of(gy, w, gx), conv_flops(w, gy));
    c.cost.products = true;
    return c;
  });
  TARN_COUNT(conv.backward_weight, [](T x, T gy, const Conv2dOptions&, T gw, T gb, Stream) {
    Counted c = moved(gw, sizes_of(x, gy, gw, gb), conv_flops(gw, gy));
    c.cost.products = true;
    return c;
  });
}

void count_pools(KernelTable& table) {
  TARN_COUNT(pool.max_pool2d, [](T x, const Pool2dOptions&, T y, T index, Stream) {
    return moved(x, sizes_of(x, y, index), count_of(x));
  });
  TARN_COUNT(pool.max_pool2d_backward, [](T gy, T index, const Pool2dOptions&, T gx, Stream) {
    return moved(gx, sizes_of(gy, index, gx), count_of(gx));
  });
  TARN_COUNT(pool.avg_pool2d, [](T x, const Pool2dOptions&, T y, Stream) {
    return moved(x, sizes_of(x, y), count_of(x));
  });
  TARN_COUNT(pool.avg_pool2d_backward, [](T gy, const Pool2dOptions&, T gx, Stream) {
    return moved(gx, sizes_of(gy, gx), count_of(gx));
  });
}

void count_indexing(KernelTable& table) {
  TARN_COUNT(index.find_out_of_range, [](T i, const IndexCheck&, int64_t* position, Stream) {
    *position = -1;
    return moved(i, size_of(i));
  });
  TARN_COUNT(index.index_select,
             [](T, T i, T out, Stream) { return moved(out, size_of(i) + 2 * size_of(out)); });
  TARN_COUNT(index.index_add, [](ScatterOp, T out, T i, T src, double, Stream) {
    return moved(out, size_of(i) + 3 * size_of(src), count_of(src));
  });
  TARN_COUNT(index.gather, [](T, int64_t, T i, T out, Stream) {
    return moved(out, size_of(i) + 2 * size_of(out));
  });
  TARN_COUNT(index.scatter, [](ScatterOp, T out, int64_t, T i, T src, Stream) {
    return moved(out, size_of(i) + 3 * size_of(src), count_of(src));
  });
  TARN_COUNT(index.triangle,
             [](bool, T x, int64_t, T out, Stream) { return moved(out, sizes_of(x, out)); });
}

void count_random(KernelTable& table) {
  TARN_COUNT(random.uniform, [](PhiloxState, double, double, T out, Stream) {
    return moved(out, size_of(out), 20 * count_of(out));
  });
  TARN_COUNT(random.normal, [](PhiloxState, double, double, T out, Stream) {
    return moved(out, size_of(out), 40 * count_of(out));
  });
  TARN_COUNT(random.bernoulli, [](PhiloxState, double, T out, Stream) {
    return moved(out, size_of(out), 20 * count_of(out));
  });
  TARN_COUNT(random.randint, [](PhiloxState, int64_t, int64_t, T out, Stream) {
    return moved(out, size_of(out), 20 * count_of(out));
  });
  // The mask is never stored: unfused, it would be written here and read again in backward.
  TARN_COUNT(random.dropout, [](PhiloxState, double, T x, T residual, T y, Stream) {
    Counted c = moved(y, sizes_of(x, residual, y), 20 * count_of(y));
    c.cost.saved_calls = 1 + residual.defined();
    c.cost.saved_bytes = 2 * count_of(y);
    return c;
  });
}

// Several tensors in one launch: a kernel less for every tensor beyond the first.
Counted multi_tensor(List params, double bytes, double flops_each) {
  Counted c{params.empty() ? DType::kF32 : params[0].dtype(), {.bytes = bytes}};
  for (const Tensor& p : params) c.cost.flops += flops_each * count_of(p);
  c.cost.saved_calls = std::max<int64_t>(static_cast<int64_t>(params.size()) - 1, 0);
  return c;
}

void count_optimizers(KernelTable& table) {
  TARN_COUNT(optim.sgd, [](const SgdArgs&, double, List p, List g, List m, Stream) {
    return multi_tensor(p, lists_of(p, p, g, m, m), 6);
  });
  TARN_COUNT(optim.adam,
             [](const AdamArgs&, double, List p, List g, List m, List v, List top, Stream) {
               return multi_tensor(p, lists_of(p, p, g, m, m, v, v, top, top), 14);
             });
  TARN_COUNT(optim.rmsprop,
             [](const RmspropArgs&, double, List p, List g, List s, List a, List m, Stream) {
               return multi_tensor(p, lists_of(p, p, g, s, s, a, a, m, m), 12);
             });
  TARN_COUNT(optim.adagrad, [](const AdagradArgs&, double, List p, List g, List s, Stream) {
    return multi_tensor(p, lists_of(p, p, g, s, s), 7);
  });
  TARN_COUNT(optim.norms, [](List x, double, T out, Stream) {
    return multi_tensor(x, sizes_of(x) + size_of(out), 2);
  });
  TARN_COUNT(optim.scale,
             [](List x, double, Stream) { return multi_tensor(x, lists_of(x, x), 1); });
  TARN_COUNT(optim.clamp,
             [](List x, double, Stream) { return multi_tensor(x, lists_of(x, x), 1); });
  TARN_COUNT(optim.lerp,
             [](List a, List b, double, Stream) { return multi_tensor(a, lists_of(a, a, b), 2); });
}

}  // namespace

struct DryRun::Saved {
  KernelTable table;
  Account account;
};

DryRun::DryRun() : saved_(std::make_unique<Saved>()) {
  KernelTable& table = mutable_kernels(DeviceType::kCPU);
  saved_->table = table;
  counting = &saved_->account;
  count_elementwise(table);
  count_reductions(table);
  count_norms(table);
  count_products(table);
  count_pools(table);
  count_indexing(table);
  count_random(table);
  count_optimizers(table);
}

DryRun::~DryRun() {
  mutable_kernels(DeviceType::kCPU) = saved_->table;
  counting = nullptr;
}

void DryRun::reset() {
  saved_->account.clear();
}
const Account& DryRun::account() const {
  return saved_->account;
}

}  // namespace tarn::bench
