// elementwise_walk.cpp - feeding rows: in place where possible, through buffers where not.
#include "tarn/core/cpu/elementwise_walk.h"

namespace tarn::cpu {
namespace {

constexpr int64_t kStagedBlock = 512;  // four buffers of doubles: 16 KB of first-level cache
constexpr int64_t kDirectBlock = 8192;
constexpr int64_t kTransposedBlock = 64;

// What the walk found out about a plan and a row: the same for every block.
struct Feeding {
  Row row;
  bool staged[RowCall::kMaxOperands] = {};
  bool any_staged = false;
};

Feeding feeding_of(const ElementwisePlan& plan, const RowCall& call) {
  Feeding f{call.row};
  bool plain[RowCall::kMaxOperands];
  int staged = 0;
  for (int i = 0; i < call.operands; ++i) {
    const int o = call.source[i];
    plain[i] = plan.dtype[o] == call.types[i];
    f.staged[i] = !plain[i] || plan.strides[o][0] != 1;
    staged += f.staged[i];
  }
  f.any_staged = staged > 0;
  // One broadcast input and nothing else in the way: the row's variant reads it once.
  if (call.operands == 3 && staged == 1) {
    for (int i = 1; i <= 2; ++i) {
      const Row variant = i == 1 ? call.first_scalar : call.second_scalar;
      if (f.staged[i] && plain[i] && plan.strides[call.source[i]][0] == 0 && variant) {
        f.row = variant;
        f.staged[i] = f.any_staged = false;
      }
    }
  }
  return f;
}

void walk_direct(const ElementwisePlan& plan, const RowCall& call, Row row, const Scalars& s) {
  for_each_block(plan, kDirectBlock, [&](char* const* block, int64_t n) {
    char* p[RowCall::kMaxOperands];
    for (int i = 0; i < call.operands; ++i) p[i] = block[call.source[i]];
    row(p, n, s);
  });
}

void walk_staged(const ElementwisePlan& plan, const RowCall& call, const Feeding& feeding,
                 const Scalars& s) {
  int64_t stride[RowCall::kMaxOperands];
  CastRow load[RowCall::kMaxOperands];
  for (int i = 0; i < call.operands; ++i) {
    const int o = call.source[i];
    stride[i] = plan.strides[o][0];
    load[i] =
        i == 0 ? cast_row(call.types[0], plan.dtype[o]) : cast_row(plan.dtype[o], call.types[i]);
  }
  for_each_block(plan, kStagedBlock, [&](char* const* block, int64_t n) {
    alignas(64) char buffer[RowCall::kMaxOperands][kStagedBlock * sizeof(double)];
    char* p[RowCall::kMaxOperands];
    for (int i = 0; i < call.operands; ++i) {
      char* const data = block[call.source[i]];
      p[i] = feeding.staged[i] ? buffer[i] : data;
      if (i > 0 && feeding.staged[i]) load[i](buffer[i], 1, data, stride[i], n);
    }
    feeding.row(p, n, s);
    if (feeding.staged[0]) load[0](block[call.source[0]], stride[0], buffer[0], 1, n);
  });
}

// The dimension in which some input has unit stride, while dimension 0 jumps; 0 if none. Row by
// row, such an input would fetch a cache line for every element.
int transposed_dim(const ElementwisePlan& plan, const RowCall& call) {
  if (plan.ndim == kMaxDims || plan.sizes[0] < kTransposedBlock) return 0;
  for (int i = 0; i < call.operands; ++i) {
    const int64_t* const strides = plan.strides[call.source[i]];
    if (strides[0] <= 1) continue;
    for (int d = 1; d < plan.ndim; ++d) {
      if (strides[d] == 1 && plan.sizes[d] >= 8) return d;
    }
  }
  return 0;
}

// Dimension 0 cut to `length` elements from `start`.
ElementwisePlan cut(const ElementwisePlan& plan, int64_t start, int64_t length) {
  ElementwisePlan part = plan;
  part.numel = plan.numel / plan.sizes[0] * length;
  part.sizes[0] = length;
  for (int o = 0; o < plan.operands; ++o) {
    part.data[o] =
        static_cast<char*>(plan.data[o]) + start * plan.strides[o][0] * item_size(plan.dtype[o]);
  }
  return part;
}

// Order of the walk: a short piece of dimension 0, all of dimension `dim`, then the next piece. So
// the lines an input fetched for one row serve the rows that follow at once.
void walk_transposed(const ElementwisePlan& plan, const RowCall& call, const Feeding& feeding,
                     int dim, const Scalars& s) {
  const int64_t pieces = plan.sizes[0] / kTransposedBlock;
  const int64_t whole = pieces * kTransposedBlock;
  ElementwisePlan tiled = cut(plan, 0, whole);
  tiled.ndim = plan.ndim + 1;
  const auto set = [&](int d, int64_t size, int from, int64_t times) {
    tiled.sizes[d] = size;
    for (int o = 0; o < plan.operands; ++o) tiled.strides[o][d] = plan.strides[o][from] * times;
  };
  set(0, kTransposedBlock, 0, 1);
  set(1, plan.sizes[dim], dim, 1);
  set(2, pieces, 0, kTransposedBlock);
  int next = 3;
  for (int d = 1; d < plan.ndim; ++d) {
    if (d != dim) set(next++, plan.sizes[d], d, 1);
  }
  walk_staged(tiled, call, feeding, s);
  if (whole < plan.sizes[0]) {
    walk_staged(cut(plan, whole, plan.sizes[0] - whole), call, feeding, s);
  }
}

}  // namespace

void walk(const ElementwisePlan& plan, const RowCall& call, const Scalars& s) {
  if (plan.numel == 0) return;
  bool plain = plan.dense;
  for (int i = 0; i < call.operands; ++i) plain &= plan.dtype[call.source[i]] == call.types[i];
  if (!plain) {
    const Feeding feeding = feeding_of(plan, call);
    const int dim = feeding.any_staged ? transposed_dim(plan, call) : 0;
    if (dim > 0) {
      walk_transposed(plan, call, feeding, dim, s);
    } else if (feeding.any_staged) {
      walk_staged(plan, call, feeding, s);
    } else {
      walk_direct(plan, call, feeding.row, s);
    }
    return;
  }
  for_dense_parts(plan.numel, [&](int64_t begin, int64_t end) {
    char* p[RowCall::kMaxOperands];
    for (int i = 0; i < call.operands; ++i) {
      p[i] = static_cast<char*>(plan.data[call.source[i]]) + begin * item_size(call.types[i]);
    }
    call.row(p, end - begin, s);
  });
}

}  // namespace tarn::cpu
