// core_tensor_test.cpp - the handle: undefined and moved-from tensors, tensors from nested braces,
// and what is behind it: memory that comes and goes.
#include <utility>

#include "tests_throws.h"
#include <gtest/gtest.h>

#include "tarn/autograd/functions.h"
#include "tarn/core/allocator.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/raw_matmul.h"
#include "tarn/core/views.h"

namespace tarn {
namespace {

using Values = std::vector<double>;

TEST(UndefinedTensor, every_reader_throws_and_names_itself) {
  const Tensor u;
  const std::string why =
      "(): the tensor is undefined: a gradient that is not there, the bias of a layer without one, "
      "or a tensor that was moved from; ask defined() first";
  EXPECT_THROWS_WITH(u.sizes(), ValueError, "sizes" + why);
  EXPECT_THROWS_WITH(u.strides(), ValueError, "strides" + why);
  EXPECT_THROWS_WITH(u.dim(), ValueError, "dim" + why);
  EXPECT_THROWS_WITH(u.size(0), ValueError, "size" + why);
  EXPECT_THROWS_WITH(u.stride(0), ValueError, "stride" + why);
  EXPECT_THROWS_WITH(u.numel(), ValueError, "numel" + why);
  EXPECT_THROWS_WITH(u.storage_offset(), ValueError, "storage_offset" + why);
  EXPECT_THROWS_WITH(u.dtype(), ValueError, "dtype" + why);
  EXPECT_THROWS_WITH(u.device(), ValueError, "device" + why);
  EXPECT_THROWS_WITH(u.is_contiguous(), ValueError, "is_contiguous" + why);
  EXPECT_THROWS_WITH(u.data(), ValueError, "data" + why);
  EXPECT_THROWS_WITH(u.data<float>(), ValueError, "data" + why);
  EXPECT_THROWS_WITH(u.storage(), ValueError, "storage" + why);
  EXPECT_THROWS_WITH(u.version(), ValueError, "version" + why);
  EXPECT_THROWS_WITH(u.bump_version(), ValueError, "bump_version" + why);
  EXPECT_THROWS_WITH(u.to_vector<float>(), ValueError, "to_vector" + why);
  EXPECT_EQ(u.data_or_null(), nullptr);
  EXPECT_EQ(u.describe(), "undefined");
}

TEST(UndefinedTensor, so_does_all_that_concerns_its_gradient) {
  const Tensor u;
  const std::string why = "(): the tensor is undefined";
  EXPECT_THROWS_WITH(u.is_leaf(), ValueError, "is_leaf" + why);
  EXPECT_THROWS_WITH(u.set_requires_grad(), ValueError, "set_requires_grad" + why);
  EXPECT_THROWS_WITH(u.grad(), ValueError, "grad" + why);
  EXPECT_THROWS_WITH(u.set_grad(u), ValueError, "set_grad" + why);
  EXPECT_THROWS_WITH(u.zero_grad(), ValueError, "zero_grad" + why);
  EXPECT_THROWS_WITH(u.detach(), ValueError, "detach" + why);
  EXPECT_THROWS_WITH(u.remove_hook(1), ValueError, "remove_hook" + why);
  EXPECT_THROWS_WITH(u.grad_fn_name(), ValueError, "grad_fn_name" + why);
  EXPECT_THROWS_WITH(u.retain_grad(), AutogradError, "got undefined");
  EXPECT_THROWS_WITH(u.backward(), AutogradError, "got undefined");
  EXPECT_FALSE(u.requires_grad());
}

TEST(UndefinedTensor, operations_throw_as_well) {
  const Tensor u, one = ones({1});
  const std::string why = "(): the tensor is undefined";
  EXPECT_THROWS_WITH(u.zero_(), ValueError, "zero_" + why);
  EXPECT_THROWS_WITH(u.fill_(1), ValueError, "fill_" + why);
  EXPECT_THROWS_WITH(u.copy_(one), ValueError, "copy_" + why);
  EXPECT_THROWS_WITH(u.add_(one), ValueError, "add_" + why);
  EXPECT_THROWS_WITH(u.add_(one, 2), ValueError, "add_" + why);
  EXPECT_THROWS_WITH(u.mul_(2), ValueError, "mul_" + why);
  EXPECT_THROWS_WITH(u.div_(one), ValueError, "div_" + why);
  EXPECT_THROWS_WITH(index_add_(u, 0, arange(1), one), ValueError, "index_add_" + why);
  EXPECT_THROWS_WITH(uniform_(u), ValueError, "uniform_" + why);
  EXPECT_THROWS_WITH(one.add_(u), ValueError, "add: b must be a tensor; got an undefined one");
  EXPECT_THROWS_WITH(u[0], ValueError, why);
  EXPECT_THROWS_WITH(u.view({1}), ValueError, why);
  EXPECT_THROWS_WITH(u.flatten(), ValueError, why);
  EXPECT_THROWS_WITH(u.t(), ValueError, why);
}

TEST(UndefinedTensor, a_moved_from_tensor_is_one) {
  Tensor x = ones({2});
  const Tensor y = std::move(x);
  EXPECT_THROWS_WITH(x.sizes(), ValueError, "a tensor that was moved from");
  x = y;
  EXPECT_EQ(x.numel(), 2);
}

TEST(NestedBraces, give_the_sizes) {
  EXPECT_EQ(tensor({1, 2, 3}).sizes(), (Shape{3}));
  const Tensor m = tensor({{1, 2, 3}, {4, 5, 6}}, {.dtype = DType::kI64});
  EXPECT_EQ(m.sizes(), (Shape{2, 3}));
  EXPECT_EQ(m.dtype(), DType::kI64);
  EXPECT_EQ(m.to_vector<double>(), (Values{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(tensor({{{1, 2}, {3, 4}}, {{5, 6}, {7, 8}}}).sizes(), (Shape{2, 2, 2}));
}

TEST(NestedBraces, single_entries_and_none_keep_their_depth) {
  EXPECT_EQ(tensor({5}).sizes(), (Shape{1}));
  EXPECT_EQ(tensor({{5}}).sizes(), (Shape{1, 1}));
  EXPECT_EQ(tensor({{1}, {2}}).sizes(), (Shape{2, 1}));
  EXPECT_EQ(tensor({{{1}, {2}}}).sizes(), (Shape{1, 2, 1}));
  EXPECT_EQ(tensor(5).sizes(), Shape{});
  EXPECT_EQ(tensor(5).item(), 5);
  EXPECT_EQ(tensor({}).sizes(), (Shape{0}));
  EXPECT_EQ(tensor({{}, {}}).sizes(), (Shape{2, 0}));
  EXPECT_EQ(tensor({}, {0, 3}).sizes(), (Shape{0, 3}));
  EXPECT_EQ(tensor({{1, 2}, {3, 4}}, {4}).sizes(), (Shape{4}));
}

TEST(NestedBraces, must_be_of_equal_length) {
  EXPECT_THROWS_WITH(tensor({{1, 2}, {3}}), ShapeError,
                     "tensor: lists of one depth must be of one length; the first ones give "
                     "[2, 2], but at depth 1 there is a list of 1");
  EXPECT_THROWS_WITH(tensor({{1, 2}, 3}), ShapeError, "at depth 1 there is a number");
  EXPECT_THROWS_WITH(tensor({1, {2, 3}}), ShapeError, "at depth 1 there is a list of 2");
  EXPECT_THROWS_WITH(tensor({1, 2, 3}, {2, 2}), ShapeError, "got 3 values for [2, 2]");
}

TEST(StorageMemory, goes_and_comes_back_under_the_views_of_it) {
  const Tensor x = tensor({1, 2, 3, 4}), row = raw::narrow(x, 0, 2, 2), none = zeros({0});
  Storage& storage = *x.storage();
  const uint32_t version = x.version();
  const int64_t allocated = memory_stats().allocated;
  const Tensor kept = x.clone();
  storage.drop_memory([](int64_t at) { return "[" + std::to_string(at) + "] is out"; });
  EXPECT_EQ(memory_stats().allocated, allocated);  // the copy's in place of it
  EXPECT_EQ(row.sizes(), (Shape{2}));
  EXPECT_THROWS_WITH(row.data(), ValueError, "[2] is out; got [2] f32 cpu");
  EXPECT_THROWS_WITH(raw::add(row, row), ValueError, "[2] is out");
  EXPECT_THROWS_WITH(raw::matmul(raw::view(x, {2, 2}), raw::view(kept, {2, 2})), ValueError,
                     "[0] is out; got [2, 2] f32 cpu");
  EXPECT_EQ(none.data(), nullptr);
  storage.adopt(*kept.storage());
  EXPECT_EQ(row.to_vector<double>(), (std::vector<double>{3, 4}));
  EXPECT_EQ(x.version(), version);
}

TEST(SetData, gives_a_tensor_other_values_and_keeps_it_the_same) {
  const Tensor x = tensor({1, 2}), handle = x, value = tensor({3, 4, 5}, {.dtype = DType::kF64});
  const uint32_t version = x.version();
  raw::set_data(x, raw::narrow(value, 0, 1, 2));
  EXPECT_EQ(handle.to_vector<double>(), (std::vector<double>{4, 5}));
  EXPECT_EQ(handle.dtype(), DType::kF64);
  EXPECT_GT(handle.version(), version);
  raw::fill_(handle, 7);
  EXPECT_EQ(value.to_vector<double>(), (std::vector<double>{3, 7, 7}));
}

}  // namespace
}  // namespace tarn
