// dist_group_test.cpp - every collective on every transport: dtypes, sizes, strides, order.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"
#include "tarn/tests/dist_tools.h"
#include "tarn/tests/tests_throws.h"

namespace tarn::dist {
namespace {

using test::bits;
using test::device_of;
using test::on;
using test::values_of;

constexpr DType kAllDTypes[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16,
                                DType::kI64, DType::kI32, DType::kU8,  DType::kBool};
constexpr ReduceOp kAllOps[] = {ReduceOp::kSum,  ReduceOp::kAvg,     ReduceOp::kMin,
                                ReduceOp::kMax,  ReduceOp::kProduct, ReduceOp::kBitAnd,
                                ReduceOp::kBitOr};
// Nothing, one, fewer than ranks, inline, several messages.
const std::vector<int64_t> kSizes = {0, 1, 3, 1001, 40013};

class Group : public test::OnRanks {};
INSTANTIATE_TEST_SUITE_P(All, Group,
                         testing::Combine(testing::Values("local", "host", "gloo", "nccl"),
                                          testing::Values(1, 2, 3, 4)),
                         test::ranks_name);

bool allowed(ReduceOp op, DType dtype) {
  if (op == ReduceOp::kAvg) return is_floating(dtype);
  return (op != ReduceOp::kBitAnd && op != ReduceOp::kBitOr) || !is_floating(dtype);
}

// One element of the result, from the small whole numbers of values_of.
int64_t reduced(ReduceOp op, DType dtype, int64_t i, int size) {
  const bool logical = dtype == DType::kBool;
  int64_t result = 0;
  for (int r = 0; r < size; ++r) {
    int64_t v = (i * 7 + r * 3) % 5;
    v = logical ? v > 1 : v + 1;
    if (r == 0) {
      result = v;
    } else if (op == ReduceOp::kSum || op == ReduceOp::kAvg) {
      result = logical ? (result | v) : result + v;
    } else if (op == ReduceOp::kProduct) {
      result *= v;
    } else if (op == ReduceOp::kMin) {
      result = std::min(result, v);
    } else if (op == ReduceOp::kMax) {
      result = std::max(result, v);
    } else {
      result = op == ReduceOp::kBitAnd ? (result & v) : (result | v);
    }
  }
  return result;
}

Tensor expected(ReduceOp op, DType dtype, const Shape& sizes, int size) {
  Tensor x = empty(sizes, {.dtype = dtype});
  visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
    for (int64_t i = 0; i < x.numel(); ++i) {
      const int64_t v = reduced(op, dtype, i, size);
      using A = compute_t<T>;
      const A a = static_cast<A>(v);
      x.data<T>()[i] =
          static_cast<T>(op == ReduceOp::kAvg ? static_cast<A>(a / static_cast<A>(size)) : a);
    }
  });
  return x;
}

TEST_P(Group, all_reduce_is_right_for_every_op_and_dtype) {
  run([](ProcessGroup& g) {
    for (DType dtype : kAllDTypes) {
      for (ReduceOp op : kAllOps) {
        if (!allowed(op, dtype)) continue;
        for (int64_t n : kSizes) {
          if (n > 2000 && op != ReduceOp::kSum && op != ReduceOp::kMax) continue;
          const Tensor x = values_of(g.rank(), {n}, dtype, device_of(g));
          g.all_reduce(x, op)->wait();
          EXPECT_EQ(bits(x), bits(expected(op, dtype, {n}, g.size())))
              << op_name(op) << " " << dtype << " " << n << " rank " << g.rank();
        }
      }
    }
  });
}

TEST_P(Group, sums_follow_the_order_of_ranks_whatever_the_size) {
  constexpr int64_t kLong = 1500007;  // several segments per rank
  std::vector<std::vector<float>> inputs;
  for (int r = 0; r < size(); ++r) {
    std::mt19937 random(static_cast<unsigned>(r));
    std::vector<float> x(kLong);
    for (float& v : x)
      v = std::ldexp(static_cast<float>(random()), static_cast<int>(random() % 40));
    inputs.push_back(std::move(x));
  }
  std::vector<float> sum = inputs[0];
  std::vector<bfloat16> halves(kLong);
  for (int64_t i = 0; i < kLong; ++i) {
    const size_t at = static_cast<size_t>(i);
    float wide = bfloat16(inputs[0][at]);
    for (size_t r = 1; r < inputs.size(); ++r) {
      sum[at] += inputs[r][at];
      wide += bfloat16(inputs[r][at]);
    }
    halves[at] = bfloat16(wide);  // rounded once
  }
  run([&](ProcessGroup& g) {
    const auto& mine = inputs[static_cast<size_t>(g.rank())];
    for (int64_t n : {int64_t{7}, int64_t{8192}, int64_t{8193}, int64_t{300001}, kLong}) {
      const std::vector<float> head(mine.begin(), mine.begin() + n);
      const Tensor x = raw::to(from_vector(head, {n}), device_of(g));
      const Tensor h = raw::to(x, DType::kBF16);
      const WorkPtr both[] = {g.all_reduce(x), g.all_reduce(h)};
      for (const WorkPtr& work : both) work->wait();
      const size_t count = static_cast<size_t>(n);
      EXPECT_EQ(std::memcmp(bits(x).data(), sum.data(), count * sizeof(float)), 0) << n;
      EXPECT_EQ(std::memcmp(bits(h).data(), halves.data(), count * sizeof(bfloat16)), 0) << n;
    }
  });
}

TEST_P(Group, nan_and_infinity_keep_their_meaning) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInf = INFINITY;
  run([&](ProcessGroup& g) {
    const bool last = g.rank() == g.size() - 1, first = g.rank() == 0;
    for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kSum, ReduceOp::kAvg}) {
      for (DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
        const Tensor x =
            tensor({last ? kNaN : 1, first ? kNaN : 1, first ? kInf : 1, 2}, on(g, dtype));
        g.all_reduce(x, op)->wait();
        const auto v = x.to_vector<double>();
        EXPECT_TRUE(std::isnan(v[0]) && std::isnan(v[1])) << op_name(op) << " " << dtype;
        EXPECT_EQ(v[2], op == ReduceOp::kMin && g.size() > 1 ? 1 : kInf);
        EXPECT_EQ(v[3], op == ReduceOp::kSum ? 2 * g.size() : 2);
      }
    }
  });
}

TEST_P(Group, tensors_of_any_strides_are_taken) {
  run([](ProcessGroup& g) {
    const Tensor sum = expected(ReduceOp::kSum, DType::kF32, {2, 3, 4, 5}, g.size());
    const auto put = [&](const Tensor& x) {
      raw::copy_(x, values_of(g.rank(), {2, 3, 4, 5}, DType::kF32, device_of(g)));
      return x;
    };
    const std::vector<Tensor> layouts = {
        put(raw::permute(zeros({5, 4, 3, 2}, on(g)), {3, 2, 1, 0})),
        put(raw::slice(zeros({2, 3, 4, 10}, on(g)), 3, 0, 10, 2)),
        put(zeros({2, 3, 4, 5}, {.device = device_of(g), .format = MemoryFormat::kChannelsLast})),
        put(raw::narrow(zeros({2, 3, 4, 9}, on(g)), 3, 2, 5)),
    };
    for (const Tensor& x : layouts) {
      const uint32_t version = x.version();
      g.all_reduce(x)->wait();
      EXPECT_EQ(bits(x), bits(sum)) << x.strides();
      EXPECT_GT(x.version(), version);
    }
    const Tensor scalar = full({}, g.rank() + 1.0, on(g));
    g.all_reduce(scalar)->wait();
    EXPECT_EQ(scalar.item(), g.size() * (g.size() + 1) / 2);
  });
}

TEST_P(Group, many_tensors_travel_as_one) {
  run([](ProcessGroup& g) {
    for (int64_t n : {10, 20000}) {
      const std::vector<Tensor> xs = {
          values_of(g.rank(), {n}, DType::kF16, device_of(g)),
          raw::t(values_of(g.rank(), {3, 5}, DType::kF16, device_of(g))),
          values_of(g.rank(), {0}, DType::kF16, device_of(g))};
      const Tensor turned = raw::t(expected(ReduceOp::kMax, DType::kF16, {3, 5}, g.size()));
      g.all_reduce(xs, ReduceOp::kMax)->wait();
      EXPECT_EQ(bits(xs[0]), bits(expected(ReduceOp::kMax, DType::kF16, {n}, g.size())));
      EXPECT_EQ(bits(xs[1]), bits(turned));
    }
  });
}

TEST_P(Group, broadcast_reaches_all_from_every_root) {
  run([](ProcessGroup& g) {
    for (int root = 0; root < g.size(); ++root) {
      for (int64_t n : kSizes) {
        const std::vector<Tensor> xs = {
            values_of(g.rank(), {n}, DType::kF32, device_of(g)),
            values_of(g.rank(), {3}, DType::kBool, device_of(g)),
            raw::t(values_of(g.rank(), {2, 7}, DType::kI64, device_of(g)))};
        g.broadcast(xs, root)->wait();
        EXPECT_EQ(bits(xs[0]), bits(values_of(root, {n}, DType::kF32)));
        EXPECT_EQ(bits(xs[1]), bits(values_of(root, {3}, DType::kBool)));
        EXPECT_EQ(bits(xs[2]), bits(raw::t(values_of(root, {2, 7}, DType::kI64))));
      }
    }
  });
}

TEST_P(Group, reduce_changes_the_root_alone) {
  run([](ProcessGroup& g) {
    for (int root = 0; root < g.size(); ++root) {
      for (int64_t n : {int64_t{0}, int64_t{5}, int64_t{700001}}) {
        const Tensor x = values_of(g.rank(), {n}, DType::kI32, device_of(g));
        g.reduce(x, root)->wait();
        EXPECT_EQ(bits(x),
                  bits(g.rank() == root ? expected(ReduceOp::kSum, DType::kI32, {n}, g.size())
                                        : values_of(g.rank(), {n}, DType::kI32, device_of(g))));
      }
    }
  });
}

TEST_P(Group, all_gather_stacks_in_rank_order) {
  run([](ProcessGroup& g) {
    const int W = g.size();
    for (int64_t n : kSizes) {
      const Tensor x = values_of(g.rank(), {n, 2}, DType::kF64, device_of(g));
      const Tensor apart = zeros({W, n, 2}, on(g, DType::kF64));
      const Tensor along = zeros({W * n, 2}, on(g, DType::kF64));
      const Tensor strided = raw::t(zeros({2, W * n}, on(g, DType::kF64)));
      for (const Tensor& out : {apart, along, strided}) g.all_gather(out, x)->wait();
      for (int r = 0; r < W; ++r) {
        const std::string part = bits(values_of(r, {n, 2}, DType::kF64));
        EXPECT_EQ(bits(raw::select(apart, 0, r)), part);
        EXPECT_EQ(bits(raw::narrow(along, 0, r * n, n)), part);
        EXPECT_EQ(bits(raw::narrow(strided, 0, r * n, n)), part);
      }
    }
    // Sizes that differ between ranks: rank r gives 20000 r + 1 numbers.
    std::vector<Tensor> outs;
    for (int r = 0; r < W; ++r) outs.push_back(zeros({20000 * r + 1}, on(g)));
    g.all_gather(outs, values_of(g.rank(), {20000 * g.rank() + 1}, DType::kF32, device_of(g)))
        ->wait();
    for (int r = 0; r < W; ++r) {
      EXPECT_EQ(bits(outs[static_cast<size_t>(r)]),
                bits(values_of(r, {20000 * r + 1}, DType::kF32)));
    }
  });
}

TEST_P(Group, reduce_scatter_gives_each_rank_its_part) {
  run([](ProcessGroup& g) {
    const int W = g.size();
    for (int64_t n : kSizes) {
      const Tensor x = values_of(g.rank(), {W * n}, DType::kF32, device_of(g));
      const Tensor all = expected(ReduceOp::kSum, DType::kF32, {W * n}, W);
      const Tensor out = zeros({n}, on(g));
      g.reduce_scatter(out, x)->wait();
      EXPECT_EQ(bits(out), bits(raw::narrow(all, 0, g.rank() * n, n)));
      EXPECT_EQ(bits(x), bits(values_of(g.rank(), {W * n}, DType::kF32, device_of(g))))
          << "input changed";
    }
    std::vector<Tensor> xs;
    for (int r = 0; r < W; ++r)
      xs.push_back(values_of(g.rank(), {30000 * r + 2}, DType::kF32, device_of(g)));
    const Tensor out = zeros({30000 * g.rank() + 2}, on(g));
    g.reduce_scatter(out, xs, ReduceOp::kAvg)->wait();
    EXPECT_EQ(bits(out), bits(expected(ReduceOp::kAvg, DType::kF32, out.sizes(), W)));
  });
}

// In every way in which a transport makes the sum: as it is, wider, with a mask, from all values.
TEST_P(Group, reduce_scatter_fills_a_tensor_of_any_strides) {
  run([](ProcessGroup& g) {
    const int W = g.size();
    const std::pair<DType, ReduceOp> cases[] = {
        {DType::kF32, ReduceOp::kSum},  {DType::kF16, ReduceOp::kSum},
        {DType::kBF16, ReduceOp::kAvg}, {DType::kF32, ReduceOp::kMax},
        {DType::kF16, ReduceOp::kMin},  {DType::kI32, ReduceOp::kBitOr}};
    for (const auto& [dtype, op] : cases) {
      const Tensor all = expected(op, dtype, {W, 4, 3}, W);
      const Tensor out = raw::t(zeros({3, 4}, on(g, dtype)));
      g.reduce_scatter(out, values_of(g.rank(), {W, 4, 3}, dtype, device_of(g)), op)->wait();
      EXPECT_EQ(bits(out), bits(raw::select(all, 0, g.rank()))) << op_name(op) << " " << dtype;

      std::vector<Tensor> xs;  // of other sizes on other ranks
      for (int r = 0; r < W; ++r) {
        xs.push_back(values_of(g.rank(), {r + 2, 3}, dtype, device_of(g)));
      }
      const Tensor uneven = raw::t(zeros({3, g.rank() + 2}, on(g, dtype)));
      g.reduce_scatter(uneven, xs, op)->wait();
      EXPECT_EQ(bits(uneven), bits(expected(op, dtype, {g.rank() + 2, 3}, W)))
          << op_name(op) << " " << dtype;
    }
  });
}

TEST_P(Group, every_call_fills_tensors_of_any_strides) {
  run([](ProcessGroup& g) {
    const int W = g.size();
    const auto turned = [&](int64_t rows) { return raw::t(zeros({3, rows}, on(g))); };
    const auto of = [&](int rank, int64_t rows) {
      return values_of(rank, {rows, 3}, DType::kF32, device_of(g));
    };
    std::vector<Tensor> even, uneven, parts, gathered;
    for (int r = 0; r < W; ++r) {
      even.push_back(turned(4));
      uneven.push_back(turned(r + 2));
      parts.push_back(of(g.rank() + 1, 4));
      gathered.push_back(turned(4));
    }
    g.all_gather(even, of(g.rank(), 4))->wait();
    g.all_gather(uneven, of(g.rank(), g.rank() + 2))->wait();
    g.gather(g.rank() == 0 ? gathered : std::vector<Tensor>(), of(g.rank(), 4), 0)->wait();
    for (int r = 0; r < W; ++r) {
      const auto at = static_cast<size_t>(r);
      EXPECT_EQ(bits(even[at]), bits(of(r, 4)));
      EXPECT_EQ(bits(uneven[at]), bits(of(r, r + 2)));
      if (g.rank() == 0) {
        EXPECT_EQ(bits(gathered[at]), bits(of(r, 4)));
      }
    }
    g.all_to_all(even, parts)->wait();
    for (int r = 0; r < W; ++r) EXPECT_EQ(bits(even[static_cast<size_t>(r)]), bits(of(r + 1, 4)));
    const Tensor part = turned(4);
    g.scatter(part, g.rank() == 0 ? parts : std::vector<Tensor>(), 0)->wait();
    EXPECT_EQ(bits(part), bits(of(1, 4)));
    const Tensor x = raw::t(raw::contiguous(raw::t(of(g.rank(), 4)))), mine = of(g.rank(), 4);
    g.reduce(x, 0, ReduceOp::kMax)->wait();
    EXPECT_EQ(bits(x), bits(g.rank() ? mine : expected(ReduceOp::kMax, DType::kF32, {4, 3}, W)));
  });
}

TEST_P(Group, coalesced_forms_equal_the_single_ones) {
  run([](ProcessGroup& g) {
    const int W = g.size();
    const std::vector<Tensor> xs = {values_of(g.rank(), {4}, DType::kF32, device_of(g)),
                                    values_of(g.rank(), {2, 3}, DType::kF32, device_of(g))};
    const std::vector<Tensor> stacked = {zeros({W, 4}, on(g)), zeros({W * 2, 3}, on(g))};
    g.all_gather_coalesced(stacked, xs)->wait();
    for (int r = 0; r < W; ++r) {
      EXPECT_EQ(bits(raw::select(stacked[0], 0, r)), bits(values_of(r, {4}, DType::kF32)));
      EXPECT_EQ(bits(raw::narrow(stacked[1], 0, 2 * r, 2)),
                bits(values_of(r, {2, 3}, DType::kF32)));
    }
    // Every rank holds the same stack now: the sum is W times the own part.
    const std::vector<Tensor> parts = {zeros({4}, on(g)), zeros({2, 3}, on(g))};
    g.reduce_scatter_coalesced(parts, stacked, ReduceOp::kAvg)->wait();
    EXPECT_EQ(bits(parts[0]), bits(xs[0]));
    EXPECT_EQ(bits(parts[1]), bits(xs[1]));
  });
}

TEST_P(Group, all_to_all_transposes_ranks_and_parts) {
  run([](ProcessGroup& g) {
    const int W = g.size();
    for (int64_t n : {1, 9000}) {
      const Tensor x = empty({W * n}), out = empty({W * n}, on(g));
      for (int64_t i = 0; i < W * n; ++i) x.data<float>()[i] = 100.f * g.rank() + i / n;
      g.all_to_all(out, raw::to(x, device_of(g)))->wait();
      const auto got = out.to_vector<float>();
      for (int64_t i = 0; i < W * n; ++i) {
        ASSERT_EQ(got[static_cast<size_t>(i)], 100.f * (i / n) + g.rank());
      }
    }
    // Rank s sends s + 2 r numbers to rank r.
    std::vector<Tensor> xs, outs;
    for (int r = 0; r < W; ++r) {
      xs.push_back(full({g.rank() + 2 * r}, 10.0 * g.rank() + r, on(g)));
      outs.push_back(zeros({r + 2 * g.rank()}, on(g)));
    }
    g.all_to_all(outs, xs)->wait();
    for (int r = 0; r < W; ++r) {
      EXPECT_EQ(bits(outs[static_cast<size_t>(r)]),
                bits(full({r + 2 * g.rank()}, 10.0 * r + g.rank())));
    }
  });
}

TEST_P(Group, gather_and_scatter_are_inverse) {
  run([](ProcessGroup& g) {
    for (int root = 0; root < g.size(); ++root) {
      for (int64_t n : {int64_t{3}, int64_t{30000}}) {
        std::vector<Tensor> parts;
        for (int r = 0; g.rank() == root && r < g.size(); ++r) {
          parts.push_back(zeros({n}, on(g, DType::kU8)));
        }
        const Tensor x = values_of(g.rank(), {n}, DType::kU8, device_of(g));
        g.gather(parts, x, root)->wait();
        for (size_t r = 0; r < parts.size(); ++r) {
          EXPECT_EQ(bits(parts[r]), bits(values_of(static_cast<int>(r), {n}, DType::kU8)));
        }
        const Tensor back = zeros({n}, on(g, DType::kU8));
        g.scatter(back, parts, root)->wait();
        EXPECT_EQ(bits(back), bits(x));
      }
    }
  });
}

}  // namespace
}  // namespace tarn::dist
