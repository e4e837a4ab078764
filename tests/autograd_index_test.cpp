// autograd_index_test.cpp - picking, writing, joining, padding: values, gradients, errors.
#include <cmath>
#include <functional>

#include <gtest/gtest.h>

#include "tarn/autograd/engine.h"
#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/core/parallel.h"

namespace tarn {
namespace {

using Values = std::vector<double>;
using Ints = std::vector<int64_t>;

Tensor ints(const Ints& values, const Shape& sizes) {
  return from_vector(values, sizes);
}
Tensor ints(const Ints& values) {
  return from_vector(values, {static_cast<int64_t>(values.size())});
}
Tensor iota(const Shape& sizes, DType dtype = DType::kF64) {
  return arange(sizes.numel()).to(dtype).reshape(sizes);
}
Values values(const Tensor& x) {
  return x.to_vector<double>();
}

template <class E>
void expect_error(const std::function<void()>& f, const std::string& text) {
  try {
    f();
    FAIL() << "no error; expected: " << text;
  } catch (const E& e) {
    EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
  }
}

double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// The gradient of sum(f(x) * w) with fixed random w against finite differences, and the gradient's
/// own gradient in the same way.
void check_gradient(const std::function<Tensor(const Tensor&)>& f, const Tensor& at) {
  Generator g(17);
  Tensor x = at.clone();
  x.set_requires_grad();
  const Tensor y = f(x);
  const Tensor w = randn(y.sizes(), {.dtype = DType::kF64}, &g);
  y.backward(w);
  ASSERT_TRUE(x.grad().defined());
  const Values got = values(x.grad());
  constexpr double kStep = 1e-5;
  Values base = values(at);
  for (size_t i = 0; i < base.size(); ++i) {
    double sums[2];
    for (int side = 0; side < 2; ++side) {
      Values moved = base;
      moved[i] += side ? -kStep : kStep;
      sums[side] = dot(values(f(from_vector(moved, at.sizes()))), values(w));
    }
    ASSERT_NEAR(got[i], (sums[0] - sums[1]) / (2 * kStep), 1e-6) << "element " << i;
  }
}

TEST(IndexTest, index_select_picks_along_any_dim_of_any_layout) {
  const Tensor x = iota({2, 3, 4});
  EXPECT_EQ(values(index_select(x, 1, ints({2, 0, 2}))),
            (Values{8,  9,  10, 11, 0,  1,  2,  3,  8,  9,  10, 11,
                    20, 21, 22, 23, 12, 13, 14, 15, 20, 21, 22, 23}));
  EXPECT_EQ(values(index_select(x.transpose(0, 2), 0, ints({1}))), (Values{1, 13, 5, 17, 9, 21}));
  EXPECT_EQ(index_select(x, -1, ints({})).sizes(), (Shape{2, 3, 0}));
  EXPECT_EQ(index_select(zeros({2, 0}), 0, ints({1, 1, 1})).sizes(), (Shape{3, 0}));
  EXPECT_EQ(values(index_select(x, 0, tensor({1}, {.dtype = DType::kI32})))[0], 12);
  for (DType d : {DType::kF32, DType::kF16, DType::kBF16, DType::kI64, DType::kI32, DType::kU8}) {
    EXPECT_EQ(values(index_select(iota({5}, d), 0, ints({4, 0}))), (Values{4, 0})) << d;
  }
}

TEST(IndexTest, picked_rows_add_their_gradients) {
  // REPORTS C4: rows 0,0,2 with output gradients 1,2,3 give 3,0,3.
  Tensor x = zeros({3});
  x.set_requires_grad();
  index_select(x, 0, ints({0, 0, 2})).backward(tensor({1, 2, 3}));
  EXPECT_EQ(values(x.grad()), (Values{3, 0, 3}));
}

TEST(IndexTest, one_value_added_twice_counts_twice) {
  // REPORTS C4: one value 1 at indices 0,0 into three zeros gives 2,0,0.
  const Tensor x = zeros({3});
  EXPECT_EQ(values(index_put(x, {ints({0, 0})}, scalar_tensor(1.0), true)), (Values{2, 0, 0}));
  EXPECT_EQ(values(index_add(x, 0, ints({0, 0}), ones({2}))), (Values{2, 0, 0}));
  EXPECT_EQ(values(scatter_add(x, 0, ints({0, 0}), ones({2}))), (Values{2, 0, 0}));
}

TEST(IndexTest, a_hundred_runs_over_duplicates_are_bit_equal_at_any_thread_count) {
  // REPORTS C4: 10,000 picks over 100 rows; narrow and wide rows take different paths.
  const int before = num_threads();
  for (int64_t width : {1, 8, 300}) {
    Generator g(5);
    const Tensor ix = randint(0, 100, {10000}, {.dtype = DType::kI64}, &g);
    const Tensor src = randn({10000, width}, {}, &g);
    Values first, first_scatter;
    for (int run = 0; run < (width == 1 ? 100 : 6); ++run) {
      set_num_threads(1 + run % 4);
      const Values sum = values(index_add(zeros({100, width}), 0, ix, src));
      const Values scattered = values(
          scatter_add(zeros({100, width}), 0, ix.reshape({-1, 1}).expand({10000, width}), src));
      if (run == 0) first = sum, first_scatter = scattered;
      ASSERT_EQ(sum, first);
      ASSERT_EQ(scattered, first_scatter);
    }
    EXPECT_EQ(first, first_scatter);
  }
  set_num_threads(before);
}

TEST(IndexTest, halves_are_summed_in_f32) {
  // 1 + 4096 times 2^-12: each addition alone would be lost in f16.
  const Tensor x = ones({1}, {.dtype = DType::kF16});
  const Tensor src = full({4096}, 0x1p-12, {.dtype = DType::kF16});
  const Tensor ix = zeros({4096}, {.dtype = DType::kI64});
  EXPECT_EQ(values(index_add(x, 0, ix, src)), (Values{2}));
  EXPECT_EQ(values(scatter_add(x, 0, ix, src)), (Values{2}));
}

TEST(IndexTest, the_last_of_several_writes_wins) {
  EXPECT_EQ(values(index_copy(zeros({3}), 0, ints({1, 1}), tensor({5, 6}))), (Values{0, 6, 0}));
  EXPECT_EQ(values(scatter(zeros({3}), 0, ints({1, 1}), tensor({5, 6}))), (Values{0, 6, 0}));
  EXPECT_EQ(values(index_put(zeros({3}), {ints({1, 1})}, tensor({5, 6}))), (Values{0, 6, 0}));
}

TEST(IndexTest, gather_and_scatter_follow_their_definition) {
  const Tensor x = iota({3, 4, 5});
  for (int dim = 0; dim < 3; ++dim) {
    Shape sizes{2, 3, 4};
    sizes[dim] = 6;
    Generator g(3);
    const Tensor ix = randint(0, x.size(dim), sizes, {.dtype = DType::kI64}, &g);
    const Ints at = ix.to_vector<int64_t>();
    const Values got = values(gather(x, dim, ix));
    const Values turned = values(gather(x.transpose(0, 2).contiguous().transpose(0, 2), dim, ix));
    const Tensor src = iota(sizes);
    const Values added = values(scatter_add(x, dim, ix, src));
    Values want_added = values(x);
    size_t n = 0;
    for (int64_t a = 0; a < sizes[0]; ++a) {
      for (int64_t b = 0; b < sizes[1]; ++b) {
        for (int64_t c = 0; c < sizes[2]; ++c, ++n) {
          int64_t p[3] = {a, b, c};
          p[dim] = at[n];
          const int64_t offset = p[0] * 20 + p[1] * 5 + p[2];
          ASSERT_EQ(got[n], static_cast<double>(offset));
          want_added[static_cast<size_t>(offset)] += static_cast<double>(n);
        }
      }
    }
    EXPECT_EQ(turned, got);
    EXPECT_EQ(added, want_added);
  }
  EXPECT_EQ(values(scatter(zeros({2, 3}), 1, ints({2, 0}, {2, 1}), Scalar(7))),
            (Values{0, 0, 7, 7, 0, 0}));
  EXPECT_EQ(gather(x, 1, zeros({3, 0, 5}, {.dtype = DType::kI64})).sizes(), (Shape{3, 0, 5}));
}

TEST(IndexTest, take_along_dim_broadcasts) {
  const Tensor x = tensor({10, 30, 20, 60, 40, 50}, {2, 3});
  EXPECT_EQ(values(take_along_dim(x, ints({2, 0}, {1, 2}), 1)), (Values{20, 10, 50, 60}));
}

TEST(IndexTest, in_place_forms_write_through_views_and_shared_storage) {
  Tensor x = zeros({4, 3});
  Tensor column = x.select(1, 1);
  index_add_(column, 0, ints({0, 3, 3}), ones({3}));
  EXPECT_EQ(values(x), (Values{0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0}));
  Tensor y = tensor({1, 2, 3, 4});
  index_copy_(y, 0, ints({0, 1, 2}), y.slice(0, 1, 4));  // reads first, then writes
  EXPECT_EQ(values(y), (Values{2, 3, 4, 4}));
  scatter_(y, 0, ints({3}), Scalar(9));
  EXPECT_EQ(values(y), (Values{2, 3, 4, 9}));
  index_put_(y, {ints({-1})}, scalar_tensor(5.0));
  EXPECT_EQ(values(y), (Values{2, 3, 4, 5}));
  const uint32_t version = y.version();
  scatter_add_(y, 0, ints({0}), ones({1}));
  EXPECT_GT(y.version(), version);
  Tensor wide = zeros({1}).expand({4});
  expect_error<Error>([&] { index_add_(wide, 0, ints({0}), ones({1})); }, "index_add");
}

TEST(IndexTest, index_by_tensors_places_dimensions_as_numpy_does) {
  const Tensor x = iota({2, 3, 4});
  EXPECT_EQ(values(index(x, {ints({1, 0}), ints({2, -1})})),
            (Values{20, 21, 22, 23, 8, 9, 10, 11}));
  EXPECT_EQ(index(x, {{}, ints({0, 1, 2, 0}, {2, 2})}).sizes(), (Shape{2, 2, 2, 4}));
  // Separated by a whole dimension: in front.
  const Tensor apart = index(iota({2, 3, 4, 5}), {ints({0}), {}, ints({1, 2, 3})});
  EXPECT_EQ(apart.sizes(), (Shape{3, 3, 5}));
  EXPECT_EQ(values(apart)[15], 10);  // [1][0][0] = x[0][0][2][0]
  // Neighbours further back: where they were.
  EXPECT_EQ(index(iota({2, 3, 4, 5}), {{}, ints({0, 1}), ints({1, 2})}).sizes(), (Shape{2, 2, 5}));
  EXPECT_EQ(values(index(x, {{}, ints({0, 1}), ints({1, 2})})), (Values{1, 6, 13, 18}));
}

TEST(IndexTest, masks_pick_and_write) {
  const Tensor x = iota({2, 3});
  const Tensor mask = gt(x, 2.5);
  EXPECT_EQ(values(masked_select(x, mask)), (Values{3, 4, 5}));
  EXPECT_EQ(values(index(x, {mask})), (Values{3, 4, 5}));
  EXPECT_EQ(values(index(x, {{}, tensor({1, 0, 1}, {.dtype = DType::kBool})})),
            (Values{0, 2, 3, 5}));
  EXPECT_EQ(values(index_put(x, {mask}, scalar_tensor(-1.0, {.dtype = DType::kF64}))),
            (Values{0, 1, 2, -1, -1, -1}));
  EXPECT_EQ(masked_select(x, lt(x, -1)).sizes(), (Shape{0}));
  EXPECT_EQ(values(masked_select(x, tensor({1, 0, 0}, {.dtype = DType::kBool}))), (Values{0, 3}));
}

TEST(IndexTest, nonzero_lists_positions) {
  const Tensor x = tensor({0, NAN, -0.0, 2, 0, 1}, {2, 3});
  EXPECT_EQ(nonzero(x).to_vector<int64_t>(), (Ints{0, 1, 1, 0, 1, 2}));
  EXPECT_EQ(nonzero(zeros({3, 0})).sizes(), (Shape{0, 2}));
  EXPECT_EQ(nonzero(scalar_tensor(5)).sizes(), (Shape{1, 0}));
  const Tensor big = ones({100, 300});
  const Tensor all = nonzero(big.transpose(0, 1));
  EXPECT_EQ(all.sizes(), (Shape{30000, 2}));
  EXPECT_EQ(all[29999].to_vector<int64_t>(), (Ints{299, 99}));
}

TEST(IndexTest, embedding_looks_up_rows_and_spares_the_padding) {
  Tensor w = iota({4, 2});
  w.set_requires_grad();
  const Tensor out = embedding(w, ints({3, 1, 1, 0}, {2, 2}), 1);
  EXPECT_EQ(out.sizes(), (Shape{2, 2, 2}));
  EXPECT_EQ(values(out), (Values{6, 7, 2, 3, 2, 3, 0, 1}));
  out.backward(ones_like(out));
  EXPECT_EQ(values(w.grad()), (Values{1, 1, 0, 0, 0, 0, 1, 1}));
}

TEST(IndexTest, one_hot_triangles_flip_roll) {
  EXPECT_EQ(values(one_hot(ints({2, 0}))), (Values{0, 0, 1, 1, 0, 0}));
  EXPECT_EQ(one_hot(ints({1}), 5).sizes(), (Shape{1, 5}));
  EXPECT_EQ(one_hot(zeros({0}, {.dtype = DType::kI64}), 3).sizes(), (Shape{0, 3}));
  const Tensor x = iota({2, 3});
  EXPECT_EQ(values(triu(x)), (Values{0, 1, 2, 0, 4, 5}));
  EXPECT_EQ(values(triu(x, 1)), (Values{0, 1, 2, 0, 0, 5}));
  EXPECT_EQ(values(tril(x)), (Values{0, 0, 0, 3, 4, 0}));
  EXPECT_EQ(values(tril(x, -1)), (Values{0, 0, 0, 3, 0, 0}));
  EXPECT_EQ(values(tril(x, 9)), values(x));
  EXPECT_EQ(values(tril(x, -9)), (Values(6, 0.0)));
  EXPECT_EQ(values(flip(x, {1})), (Values{2, 1, 0, 5, 4, 3}));
  EXPECT_EQ(values(flip(x, {0, 1})), (Values{5, 4, 3, 2, 1, 0}));
  EXPECT_EQ(values(roll(x, {1}, {1})), (Values{2, 0, 1, 5, 3, 4}));
  EXPECT_EQ(values(roll(x, {-4, 3}, {1, 0})), (Values{4, 5, 3, 1, 2, 0}));
}

TEST(IndexTest, cat_and_stack_join) {
  const Tensor a = iota({2, 1}), b = iota({2, 2});
  EXPECT_EQ(values(cat({a, b}, 1)), (Values{0, 0, 1, 1, 2, 3}));
  EXPECT_EQ(values(stack({b, b}, -1)), (Values{0, 0, 1, 1, 2, 2, 3, 3}));
  EXPECT_EQ(cat({zeros({0}), b}, 0).sizes(), (Shape{2, 2}));
  EXPECT_EQ(cat({zeros({0, 2}), iota({1, 2}, DType::kF32)}, 0).sizes(), (Shape{1, 2}));
  EXPECT_EQ(cat({ints({1}), ones({1})}, 0).dtype(), DType::kF32);
  EXPECT_EQ(cat({ones({1}, {.dtype = DType::kF16}), ones({1}, {.dtype = DType::kBF16})}).dtype(),
            DType::kF32);
  const Tensor image = randn({2, 3, 4, 4}, {.format = MemoryFormat::kChannelsLast});
  EXPECT_TRUE(cat({image, image}, 1).is_contiguous(MemoryFormat::kChannelsLast));
}

TEST(IndexTest, split_chunk_unbind_are_views) {
  const Tensor x = iota({5, 2});
  const auto parts = split(x, 2);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[2].sizes(), (Shape{1, 2}));
  EXPECT_EQ(parts[1].storage(), x.storage());
  EXPECT_EQ(split(x, std::vector<int64_t>{1, 4})[1].size(0), 4);
  EXPECT_EQ(chunk(x, 4).size(), 3u);  // ceil(5 / 4) = 2 rows each
  EXPECT_EQ(chunk(zeros({0, 2}), 3).size(), 3u);
  EXPECT_EQ(split(zeros({0, 2}), 3).size(), 1u);
  EXPECT_EQ(values(unbind(x, 1)[1]), (Values{1, 3, 5, 7, 9}));
}

TEST(IndexTest, pad_modes) {
  const Tensor x = tensor({1, 2, 3}, {1, 3});
  EXPECT_EQ(values(pad(x, {1, 2}, PadMode::kConstant, 9)), (Values{9, 1, 2, 3, 9, 9}));
  EXPECT_EQ(values(pad(x, {2, 2}, PadMode::kReflect)), (Values{3, 2, 1, 2, 3, 2, 1}));
  EXPECT_EQ(values(pad(x, {1, 2}, PadMode::kReplicate)), (Values{1, 1, 2, 3, 3, 3}));
  EXPECT_EQ(values(pad(x, {1, 3}, PadMode::kCircular)), (Values{3, 1, 2, 3, 1, 2, 3}));
  EXPECT_EQ(values(pad(x, {-1, 1})), (Values{2, 3, 0}));
  EXPECT_EQ(values(pad(x, {0, 0, 1, 0})), (Values{0, 0, 0, 1, 2, 3}));
  EXPECT_EQ(values(pad(x, {-3, 1}, PadMode::kConstant, 4)), (Values{4}));
  EXPECT_EQ(pad(zeros({0, 2}), {1, 1}).sizes(), (Shape{0, 4}));
}

TEST(IndexTest, repeat_and_repeat_interleave) {
  const Tensor x = tensor({1, 2, 3}, {3});
  EXPECT_EQ(values(repeat(x, {2})), (Values{1, 2, 3, 1, 2, 3}));
  EXPECT_EQ(values(repeat(x, {2, 1})), (Values{1, 2, 3, 1, 2, 3}));
  EXPECT_EQ(repeat(x, {2, 0}).sizes(), (Shape{2, 0}));
  EXPECT_EQ(values(repeat(tensor({1, 2}, {2, 1}), {1, 2})), (Values{1, 1, 2, 2}));
  EXPECT_NE(repeat(x, {1}).storage(), x.storage());
  EXPECT_EQ(values(repeat_interleave(x, 2, 0)), (Values{1, 1, 2, 2, 3, 3}));
}

TEST(IndexTest, every_operation_has_the_gradient_of_finite_differences) {
  Generator g(1);
  const Tensor x = randn({3, 4}, {.dtype = DType::kF64}, &g);
  const Tensor other = randn({2, 4}, {.dtype = DType::kF64}, &g);
  const Tensor ix = ints({2, 0, 2, 1, 1, 0}, {2, 3});
  const Tensor mask = gt(x, 0);
  const std::function<Tensor(const Tensor&)> cases[] = {
      [&](const Tensor& t) {
        return index_select(t, 1, ints({3, 3, 0}));
      },
      [&](const Tensor& t) { return gather(t, 0, ix); },
      [&](const Tensor& t) {
        return take_along_dim(t, ints({1, 1}, {1, 2}), 1);
      },
      [&](const Tensor& t) {
        return index(t, {ints({0, 2, 0}), ints({1, 1, 1})});
      },
      [&](const Tensor& t) {
        return index(t, {{}, ints({0, -1})});
      },
      [&](const Tensor& t) { return masked_select(t, mask); },
      [&](const Tensor& t) { return embedding(t, ix); },
      [&](const Tensor& t) {
        return index_add(t, 0, ints({0, 0}), other, 3);
      },
      [&](const Tensor& t) {
        return index_add(ones({5, 4}, {.dtype = DType::kF64}), 0, ints({4, 1, 4}), t, -2);
      },
      [&](const Tensor& t) {
        return index_copy(t, 0, ints({2, 0}), other);
      },
      [&](const Tensor& t) {
        return index_copy(ones({5, 4}, {.dtype = DType::kF64}), 0, ints({4, 1, 0}), t);
      },
      [&](const Tensor& t) { return index_fill(t, 1, ints({2}), 5); },
      [&](const Tensor& t) { return scatter(t, 0, ix, Scalar(2)); },
      [&](const Tensor& t) {
        return scatter_add(ones({3, 4}, {.dtype = DType::kF64}), 0, ix, t);
      },
      [&](const Tensor& t) { return scatter_add(t, 0, ix, other); },
      [&](const Tensor& t) {
        return index_put(t, {ints({0, 0})}, other, true);
      },
      [&](const Tensor& t) { return index_put(t, {ints({1})}, other.narrow(0, 0, 1)); },
      [&](const Tensor& t) { return index_put(other, {ints({1})}, t.narrow(0, 0, 1), true); },
      [&](const Tensor& t) { return triu(t, 1); },
      [&](const Tensor& t) { return tril(t); },
      [&](const Tensor& t) {
        return flip(t, {0, 1});
      },
      [&](const Tensor& t) {
        return roll(t, {1, -1}, {0, 1});
      },
      [&](const Tensor& t) {
        return cat({t, other, t}, 0);
      },
      [&](const Tensor& t) {
        return stack({t, t}, 1);
      },
      [&](const Tensor& t) { return mul(split(t, 3, 1)[0], 2); },
      [&](const Tensor& t) { return unbind(t, 0)[2]; },
      [&](const Tensor& t) {
        return pad(t, {1, -1, 2, 0}, PadMode::kConstant, 3);
      },
      [&](const Tensor& t) {
        return pad(t, {2, 3, 1, 0}, PadMode::kReflect);
      },
      [&](const Tensor& t) {
        return pad(t, {2, 1}, PadMode::kReplicate);
      },
      [&](const Tensor& t) {
        return pad(t, {2, 4, 3, 0}, PadMode::kCircular);
      },
      [&](const Tensor& t) {
        return repeat(t, {2, 1, 3});
      },
      [&](const Tensor& t) { return repeat_interleave(t, 2, 1); },
  };
  int number = 0;
  for (const auto& f : cases) {
    SCOPED_TRACE(number++);
    check_gradient(f, x);
    // Squared first, the gradient of the gradient's norm uses the second derivative.
    check_gradient(
        [&](const Tensor& t) {
          Tensor leaf = t;
          if (!leaf.requires_grad()) leaf = t.detach().set_requires_grad();
          const Tensor y = f(mul(leaf, leaf));
          const Tensor outputs[] = {y}, inputs[] = {leaf}, grads[] = {mul(y, 2)};
          return grad(outputs, inputs, grads, {.create_graph = true})[0];
        },
        x);
  }
}

TEST(IndexTest, in_place_forms_are_recorded) {
  Tensor base = ones({3}, {.dtype = DType::kF64});
  base.set_requires_grad();
  Tensor src = tensor({2, 3}, {.dtype = DType::kF64});
  src.set_requires_grad();
  Tensor y = mul(base, 2);
  index_add_(y, 0, ints({1, 1}), src);
  mul(y, y).backward(ones({3}, {.dtype = DType::kF64}));
  // y = [2, 2 + 2 + 3, 2]; dL/dy = 2y.
  EXPECT_EQ(values(base.grad()), (Values{8, 28, 8}));
  EXPECT_EQ(values(src.grad()), (Values{14, 14}));
  expect_error<AutogradError>(
      [&] { index_add_(base, 0, ints({0}), ones({1}, {.dtype = DType::kF64})); }, "index_add_");
}

TEST(IndexTest, out_of_range_indices_name_value_position_and_range) {
  const Tensor x = iota({5, 2});
  expect_error<IndexError>(
      [&] {
        index_select(x, 0, ints({0, 1, 2, 7}));
      },
      "index_select: index 7 at position 3 is out of range for dimension 0 of size 5");
  expect_error<IndexError>([&] { index_select(x, 0, ints({-1})); }, "index -1 at position 0");
  expect_error<IndexError>(
      [&] {
        gather(x, 1, ints({0, 1, 2, 0}, {2, 2}));
      },
      "gather: index 2 at position [1, 0] is out of range for dimension 1 of size 2");
  expect_error<IndexError>(
      [&] {
        scatter(x, 0, ints({5}, {1, 1}), Scalar(1));
      },
      "scatter: index 5 at position [0, 0]");
  expect_error<IndexError>(
      [&] {
        scatter_add(x, 0, ints({9}, {1, 1}), iota({1, 1}));
      },
      "scatter_add: index 9");
  expect_error<IndexError>([&] { index_add(x, 0, ints({5}), iota({1, 2})); }, "index_add: index 5");
  expect_error<IndexError>(
      [&] {
        index_copy(x, 0, ints({5}), iota({1, 2}));
      },
      "index_copy: index 5");
  expect_error<IndexError>(
      [&] { embedding(x, ints({5})); },
      "embedding: index 5 at position 0 is out of range for dimension 0 of size 5");
  expect_error<IndexError>(
      [&] { index(x, {ints({-6})}); },
      "index: index -6 at position 0 is out of range for dimension 0 of size 5");
  expect_error<IndexError>([&] { one_hot(ints({3}), 3); }, "one_hot: index 3");
  expect_error<IndexError>([&] { index_select(zeros({0}), 0, ints({0})); }, "of size 0");
  // Far into a long index, so that the blocked search is used.
  Ints many(5000, 1);
  many[4567] = 99;
  expect_error<IndexError>([&] { index_select(x, 0, ints(many)); }, "index 99 at position 4567");
}

TEST(IndexTest, other_errors_name_what_must_hold) {
  const Tensor x = iota({5, 2});
  expect_error<DTypeError>([&] { index_select(x, 0, ones({1})); },
                           "index must be i64 or i32; got index=[1] f32");
  expect_error<ShapeError>([&] { index_select(x, 0, ints({0}, {1, 1})); }, "index must be 1-d");
  expect_error<ShapeError>(
      [&] {
        index_select(scalar_tensor(1.0), 0, ints({0, 0}));
      },
      "0-d tensor");
  expect_error<ShapeError>([&] { gather(x, 0, ints({0})); }, "as many dimensions");
  expect_error<ShapeError>(
      [&] {
        gather(x, 0, zeros({1, 3}, {.dtype = DType::kI64}));
      },
      "must not be larger than x outside dimension 0");
  expect_error<ShapeError>(
      [&] {
        index_add(x, 0, ints({0}), iota({1, 3}));
      },
      "src must have x's sizes");
  expect_error<DTypeError>(
      [&] {
        index_add(x, 0, ints({0}), ones({1, 2}));
      },
      "x and src must have one dtype");
  expect_error<ShapeError>(
      [&] {
        index_add(x, 0, ints({0}, {1, 1}), iota({1, 2}));
      },
      "index must be 1-d");
  expect_error<ShapeError>([&] { take_along_dim(x, ints({0}), 0); },
                           "take_along_dim: index must have");
  expect_error<ShapeError>([&] { embedding(iota({3}), ints({0})); }, "weight must be [V, D]");
  expect_error<IndexError>([&] { embedding(x, ints({0}), 5); }, "padding_idx must be a row");
  expect_error<DTypeError>([&] { masked_select(x, x); }, "mask must be bool");
  expect_error<IndexError>(
      [&] {
        index(x, {tensor({1, 0}, {.dtype = DType::kBool})});
      },
      "a mask must have the sizes");
  expect_error<IndexError>(
      [&] {
        index(x, {ints({0}), ints({0}), ints({0})});
      },
      "too many indices (3)");
  expect_error<ValueError>([&] { index(x, {}); }, "at least one index");
  expect_error<ShapeError>([&] { index(x, {scalar_tensor(true, {.dtype = DType::kBool})}); },
                           "at least one dimension");
  expect_error<ShapeError>(
      [&] {
        index_put(x, {ints({0})}, iota({3, 2}));
      },
      "values must broadcast to [1, 2]");
  expect_error<ShapeError>([&] { triu(iota({3})); }, "triu: x must have at least 2 dimensions");
  expect_error<ValueError>([&] { flip(x, {0, -2}); }, "named twice");
  expect_error<ValueError>([&] { one_hot(zeros({0}, {.dtype = DType::kI64})); },
                           "number of classes");
  expect_error<ValueError>([&] { cat(std::vector<Tensor>{}); }, "cat: at least one tensor");
  expect_error<ValueError>([&] { cat({x, Tensor()}); }, "cat: tensor 1 is undefined");
  expect_error<ShapeError>([&] { cat({scalar_tensor(1.0)}); }, "use stack");
  expect_error<ShapeError>(
      [&] {
        cat({x, iota({5, 3})}, 0);
      },
      "cat: sizes must match outside dimension 0; got tensor 0=[5, 2] f64");
  expect_error<ValueError>([&] { stack({}); }, "stack: at least one tensor");
  expect_error<ShapeError>([&] { stack({x, iota({2, 5})}); }, "all tensors must have one shape");
  expect_error<ShapeError>(
      [&] {
        split(x, std::vector<int64_t>{1, 1});
      },
      "sizes must add up to dimension 0");
  expect_error<ValueError>(
      [&] {
        split(x, std::vector<int64_t>{6, -1});
      },
      "must not be negative; got -1");
  expect_error<ValueError>([&] { split(x, 0); }, "split: size must be positive");
  expect_error<ShapeError>([&] { split(scalar_tensor(1.0), std::vector<int64_t>{1}); },
                           "0-d tensor cannot be split");
  expect_error<ValueError>([&] { chunk(x, 0); }, "number of chunks");
  expect_error<ShapeError>([&] { chunk(scalar_tensor(1.0), 2); }, "0-d tensor");
  expect_error<ShapeError>([&] { unbind(scalar_tensor(1.0)); }, "no dimension to unbind");
  expect_error<ValueError>([&] { pad(x, {1}); }, "pads come in pairs");
  expect_error<ShapeError>([&] { pad(x, {-3, 0}); }, "cuts more than there is");
  expect_error<ValueError>(
      [&] {
        pad(x, {2, 0}, PadMode::kReflect);
      },
      "must be in [0, 1] at dimension 1");
  expect_error<ValueError>([&] { pad(x, {1}, PadMode::kCircular); }, "pads come in pairs");
  expect_error<ValueError>([&] { roll(x, {1}, {}); }, "one shift per dimension");
  expect_error<ValueError>([&] { repeat(x, {2}); }, "at least one number per dimension");
  expect_error<ValueError>([&] { repeat(x, {2, -1}); }, "must not be negative");
  expect_error<ValueError>([&] { repeat_interleave(x, -1, 0); }, "must not be negative; got -1");
  expect_error<ValueError>([&] { index_select(Tensor(), 0, ints({0})); },
                           "index_select: x must be a tensor");
}

}  // namespace
}  // namespace tarn
