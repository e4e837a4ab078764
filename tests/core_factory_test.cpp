// core_factory_test.cpp - tensors from nothing, and reading tensors out.
#include <cmath>
#include <limits>

#include "tests_throws.h"
#include <gtest/gtest.h>

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"

namespace tarn {
namespace {

using Values = std::vector<double>;
constexpr DType kAll[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16,
                          DType::kI64, DType::kI32, DType::kU8,  DType::kBool};

Values values(const Tensor& x) {
  return x.to_vector<double>();
}

TEST(Factory, constants_of_every_dtype) {
  for (DType dtype : kAll) {
    EXPECT_EQ(values(zeros({2, 1}, {.dtype = dtype})), (Values{0, 0}));
    EXPECT_EQ(values(ones({2}, {.dtype = dtype})), (Values{1, 1}));
    const double seven = dtype == DType::kBool ? 1 : 7;
    EXPECT_EQ(values(full({2}, 7, {.dtype = dtype})), (Values{seven, seven}));
    EXPECT_EQ(values(full_like(zeros({2}, {.dtype = dtype}), 7)), (Values{seven, seven}));
    EXPECT_EQ(zeros({0, 3}, {.dtype = dtype}).numel(), 0);
    EXPECT_EQ(scalar_tensor(1, {.dtype = dtype}).item(), 1);
  }
}

TEST(Factory, strides_that_leave_memory_are_refused) {
  const int64_t huge = int64_t{1} << 61;
  EXPECT_THROWS_WITH(empty_strided({2, 9}, {huge, huge}), ShapeError,
                     "empty_strided: strides lead beyond what memory can hold");
  EXPECT_EQ(empty_strided({0, 9}, {huge, huge}).numel(), 0);
  EXPECT_EQ(empty({huge, 0, 3, 5}).numel(), 0);
}

TEST(Factory, sizes_are_checked) {
  EXPECT_THROWS_WITH(empty({2, -1}), ShapeError, "empty: sizes must not be negative; got [2, -1]");
  constexpr int64_t kBig = std::numeric_limits<int64_t>::max() / 2;
  EXPECT_THROWS_WITH(empty({kBig, 3}), ShapeError, "empty: more elements than 64 bits can count");
  EXPECT_THROWS_WITH(empty({kBig}), ShapeError, "empty: more bytes than 64 bits can count");
  EXPECT_THROWS_WITH(from_blob(nullptr, {kBig}, DType::kF32, {}), ShapeError,
                     "from_blob: more bytes than 64 bits can count");
  EXPECT_THROWS_WITH(empty_strided({2}, {1, 1}), ShapeError,
                     "empty_strided: as many strides as sizes; got sizes=[2], strides=[1, 1]");
  EXPECT_THROWS_WITH(empty_strided({2}, {-1}), ShapeError,
                     "empty_strided: strides must not be negative; got [-1]");
}

TEST(Factory, empty_strided_holds_exactly_what_is_reached) {
  const Tensor x = empty_strided({2, 3}, {10, 2});
  EXPECT_EQ(x.strides(), (Shape{10, 2}));
  EXPECT_EQ(x.storage()->bytes(), 4u * (10 + 4 + 1));
  EXPECT_EQ(empty_strided({0, 3}, {10, 2}).storage()->bytes(), 0u);
}

TEST(Factory, like_keeps_the_order_of_dimensions) {
  const Tensor x =
      zeros({2, 3, 4, 5}, {.dtype = DType::kF64, .format = MemoryFormat::kChannelsLast});
  EXPECT_EQ(empty_like(x).strides(), x.strides());
  EXPECT_EQ(empty_like(x).dtype(), DType::kF64);
  EXPECT_EQ(empty_like(x, DType::kI32).dtype(), DType::kI32);
  const Tensor gaps = raw::slice(raw::transpose(zeros({6, 4}), 0, 1), 1, 0, 6, 2);  // [4, 3]
  EXPECT_EQ(empty_like(gaps).strides(), (Shape{1, 4}));  // dense, columns first as before
  const Tensor spread = raw::expand(zeros({3, 1}), {3, 4});
  EXPECT_EQ(values(ones_like(spread)), Values(12, 1));
  EXPECT_EQ(values(zeros_like(spread)), Values(12, 0));
}

TEST(Factory, arange_counts_as_python_does) {
  EXPECT_EQ(values(arange(4)), (Values{0, 1, 2, 3}));
  EXPECT_EQ(arange(4).dtype(), DType::kI64);
  EXPECT_EQ(values(arange(5, 0, -2)), (Values{5, 3, 1}));
  EXPECT_EQ(values(arange(0.0, 1.0, 0.25, {.dtype = DType::kF64})), (Values{0, 0.25, 0.5, 0.75}));
  EXPECT_EQ(values(arange(0.0, 1.1, 0.25, {.dtype = DType::kF32})).size(), 5u);
  EXPECT_EQ(arange(0).numel(), 0);
  constexpr int64_t kBeyond = (int64_t{1} << 53) + 1;  // not a double
  EXPECT_EQ(arange(kBeyond, kBeyond + 2, 1).to_vector<int64_t>(),
            (std::vector<int64_t>{kBeyond, kBeyond + 1}));
  EXPECT_THROWS_WITH(arange(0, 5, -1), ValueError,
                     "arange: step must lead from start to end; got start=0, end=5, step=-1");
  EXPECT_THROWS_WITH(arange(0, 5, 0), ValueError, "arange: step must lead from start to end");
  EXPECT_THROWS_WITH(arange(-3), ValueError, "arange: step must lead from start to end");
  EXPECT_THROWS_WITH(arange(0, 1, 0.1), ValueError,
                     "arange: start and step must be whole numbers for i64; got start=0, step=0.1");
  constexpr double kInf = std::numeric_limits<double>::infinity();
  EXPECT_THROWS_WITH(arange(0.0, kInf, 1.0, {.dtype = DType::kF32}), ValueError,
                     "arange: start, end and step must be finite");
  EXPECT_THROWS_WITH(arange(0.0, 1e300, 1.0, {.dtype = DType::kF64}), ShapeError,
                     "arange: more elements than 64 bits can count");
  constexpr int64_t kQuarter = int64_t{1} << 62;  // from end to end more than 64 bits hold
  EXPECT_EQ(arange(-kQuarter, kQuarter, kQuarter).to_vector<int64_t>(),
            (std::vector<int64_t>{-kQuarter, 0}));
}

TEST(Factory, linspace_hits_both_ends) {
  EXPECT_EQ(values(linspace(0, 1, 5, {.dtype = DType::kF64})), (Values{0, 0.25, 0.5, 0.75, 1}));
  EXPECT_EQ(values(linspace(0.1, 0.7, 4, {.dtype = DType::kF64})).back(), 0.7);
  EXPECT_EQ(values(linspace(3, 9, 1)), (Values{3}));
  EXPECT_EQ(values(linspace(0.5, 9.9, 3, {.dtype = DType::kI64})), (Values{0, 4, 9}));
  EXPECT_EQ(values(linspace(-0.5, -7.5, 3, {.dtype = DType::kI32})), (Values{0, -3, -7}));
  EXPECT_EQ(linspace(0, 1, 0).numel(), 0);
  EXPECT_THROWS_WITH(linspace(0, 1, -1), ValueError,
                     "linspace: steps must not be negative; got -1");
}

TEST(Factory, eye_has_ones_on_the_diagonal) {
  EXPECT_EQ(values(eye(2, 3)), (Values{1, 0, 0, 0, 1, 0}));
  EXPECT_EQ(values(eye(3, 2)), (Values{1, 0, 0, 1, 0, 0}));
  EXPECT_EQ(eye(0, 3).sizes(), (Shape{0, 3}));
}

TEST(Factory, values_go_in_and_come_out) {
  const std::vector<float> v = {1.5f, -2, 3, 4, 5, 6};
  const Tensor x = from_vector(v, {2, 3});
  EXPECT_EQ(x.dtype(), DType::kF32);
  EXPECT_EQ(x.to_vector<float>(), v);
  EXPECT_EQ(x.to_vector<int32_t>(), (std::vector<int32_t>{1, -2, 3, 4, 5, 6}));
  EXPECT_EQ(raw::transpose(x, 0, 1).to_vector<float>(), (std::vector<float>{1.5f, 4, -2, 5, 3, 6}));
  EXPECT_EQ(from_vector(std::vector<bool>{true, false}, {2}).dtype(), DType::kBool);
  EXPECT_EQ(from_vector(std::vector<bool>{true, false}, {2}).to_vector<bool>(),
            (std::vector<bool>{true, false}));
  EXPECT_EQ(values(tensor({1, 2.5})), (Values{1, 2.5}));
  EXPECT_EQ(tensor({1, 2, 3, 4}, {2, 2}).sizes(), (Shape{2, 2}));
  EXPECT_EQ(values(tensor({1.7, -1.7}, {.dtype = DType::kI64})), (Values{1, -1}));
  EXPECT_THROWS_WITH(from_vector(v, {4}), ShapeError,
                     "from_vector: sizes must hold exactly the values given; got 6 values for [4]");
  EXPECT_THROWS_WITH(tensor({1, 2}, {3}), ShapeError, "got 2 values for [3]");
}

TEST(Factory, item_reads_single_elements) {
  EXPECT_EQ(tensor({2.5}).item(), 2.5);
  EXPECT_EQ(tensor({2.5}, {1, 1}).item<int64_t>(), 2);
  EXPECT_EQ(scalar_tensor(int64_t{1} << 60, {.dtype = DType::kI64}).item<int64_t>(),
            int64_t{1} << 60);
  EXPECT_TRUE(tensor({3}, {.dtype = DType::kBool}).item<bool>());
  EXPECT_EQ(tensor(-2.9).item<int64_t>(), -2);
  EXPECT_EQ(tensor(1e30).item<int64_t>(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(tensor(-1e30).item<int64_t>(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(tensor(std::nan("")).item<int64_t>(), 0);
  EXPECT_THROWS_WITH(zeros({2}).item(), ShapeError,
                     "item: needs a tensor with one element; got [2] f32 cpu");
  EXPECT_THROWS_WITH(Tensor().item(), ShapeError, "got undefined");
  EXPECT_THROWS_WITH(zeros({2}).data<double>(), DTypeError,
                     "data: the tensor holds f32; asked for f64");
}

TEST(Factory, numbers_that_do_not_fit_an_integer_are_refused) {
  const TensorOptions whole{.dtype = DType::kI64}, narrow{.dtype = DType::kI32},
      byte{.dtype = DType::kU8};
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROWS_WITH(full({2}, 1e30, whole), ValueError,
                     "full: the number must fit i64; got 1e+30");
  EXPECT_THROWS_WITH(full({2}, 0x1p63, whole), ValueError, "full: the number must fit i64");
  EXPECT_THROWS_WITH(full({2}, kNan, narrow), ValueError, "full: the number must fit i32; got nan");
  EXPECT_THROWS_WITH(full({2}, int64_t{1} << 31, narrow), ValueError, "must fit i32");
  EXPECT_THROWS_WITH(scalar_tensor(300, byte), ValueError, "must fit u8; got 300");
  EXPECT_THROWS_WITH(full_like(zeros({2}, byte), -256), ValueError, "full_like: the number must");
  EXPECT_THROWS_WITH(zeros({2}, whole).fill_(kNan), ValueError, "fill_: the number must fit i64");
  EXPECT_THROWS_WITH(masked_fill(zeros({2}, whole), ones({2}, {.dtype = DType::kBool}), 1e30),
                     ValueError, "masked_fill: the number must fit i64");
  EXPECT_THROWS_WITH(pad(zeros({2}, byte), {1, 1}, PadMode::kConstant, 1e3), ValueError,
                     "pad: the number must fit u8");
  EXPECT_EQ(full({}, -0x1p63, whole).item<int64_t>(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(full({}, 2.9, narrow).item(), 2);
  EXPECT_EQ(full({}, -1, byte).item(), 255);
  EXPECT_EQ(full({}, 255.5, byte).item(), 255);
  EXPECT_TRUE(std::isinf(full({}, 1e30, {.dtype = DType::kF16}).item()));
  // Beside a tensor a number takes the tensor's dtype and wraps, as in PyTorch.
  EXPECT_EQ(mul(ones({}, byte), 300).item(), 44);
  EXPECT_TRUE(eq(full({}, 44, byte), 300).item<bool>());
}

TEST(Factory, linspace_of_too_many_steps_is_out_of_memory) {
  EXPECT_THROWS_WITH(linspace(0, 1, int64_t{1} << 62), ShapeError, "more bytes than 64 bits");
  EXPECT_THROWS_WITH(linspace(0, 1, int64_t{1} << 50), OutOfMemoryError, "out of memory on cpu");
}

TEST(Factory, memory_of_others_is_released_after_the_last_use) {
  float memory[] = {1, 2, 3, 4};
  bool released = false;
  {
    Tensor x = from_blob(memory, {2, 2}, DType::kF32, [&] { released = true; });
    EXPECT_EQ(x.data(), memory);
    const Tensor row = raw::select(x, 0, 1);
    x = Tensor();
    EXPECT_FALSE(released);
    raw::fill_(row, 9);
    EXPECT_EQ(memory[3], 9);
  }
  EXPECT_TRUE(released);
  EXPECT_THROWS_WITH(from_blob(memory, {-1}, DType::kF32), ShapeError,
                     "from_blob: sizes must not be negative");
}

}  // namespace
}  // namespace tarn
