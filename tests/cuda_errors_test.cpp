// cuda_errors_test.cpp - what a user sees when something is wrong on or about a GPU.
#include <cstdio>
#include <functional>

#include "gpu_tools.h"
#include "tests_throws.h"

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"

namespace tarn {
namespace {

class CudaErrors : public testing::Test {
 protected:
  void SetUp() override { TARN_NEEDS_GPU(); }
};

TEST_F(CudaErrors, operands_on_two_devices_are_both_named) {
  const Tensor x = ones({2, 3}), g = x.to(kCuda), square = ones({3, 3}), row = ones({3});
  const Tensor index = zeros({2}, {.dtype = DType::kI64}),
               labels = zeros({2}, {.dtype = DType::kI64});
  const Tensor image = ones({1, 2, 4, 4}), filters = ones({2, 2, 3, 3});
  struct Case {
    const char* op;
    std::function<void()> call;
  };
  const Case cases[] = {
      {"add", [&] { add(x, g); }},
      {"add", [&] { add(g, x); }},
      {"mul", [&] { mul(g, row); }},
      {"add",
       [&] {
         Tensor y = g.clone();
         y.add_(x);
       }},
      {"atan2", [&] { atan2(g, x); }},
      {"logical_and", [&] { logical_and(g, x); }},
      {"addcmul", [&] { addcmul(g, g, x); }},
      {"addcdiv", [&] { addcdiv(x, g, x); }},
      {"addmm", [&] { addmm(x, g, square.to(kCuda)); }},
      {"lt", [&] { lt(g, x); }},
      {"where", [&] { where(gt(x, 0), g, x); }},
      {"where", [&] { where(gt(x, 0), g, g); }},
      {"matmul", [&] { matmul(g, square); }},
      {"linear", [&] { linear(g, square); }},
      {"linear", [&] { linear(g, square.to(kCuda), row); }},
      {"conv2d", [&] { conv2d(image.to(kCuda), filters); }},
      {"conv2d", [&] { conv2d(image.to(kCuda), filters.to(kCuda), ones({2})); }},
      {"batch_norm", [&] { batch_norm(g, row, row.to(kCuda)); }},
      {"group_norm", [&] { group_norm(image.to(kCuda), 2, ones({2})); }},
      {"layer_norm", [&] { layer_norm(g, {3}, row, row); }},
      {"cat",
       [&] {
         cat({g, x}, 0);
       }},
      {"index_select", [&] { index_select(g, 0, index); }},
      {"index_add", [&] { index_add(g, 0, index.to(kCuda), x); }},
      {"index_add", [&] { index_add(g, 0, index, g); }},
      {"index_copy", [&] { index_copy(g, 0, index, g); }},
      {"gather", [&] { gather(row.to(kCuda), 0, index); }},
      {"scatter", [&] { scatter(row.to(kCuda), 0, index, ones({2}).to(kCuda)); }},
      {"scatter_add", [&] { scatter_add(row.to(kCuda), 0, index.to(kCuda), ones({2})); }},
      {"embedding", [&] { embedding(g, index); }},
      {"index", [&] { tarn::index(g, {index}); }},
      {"cross_entropy", [&] { cross_entropy(g, labels); }},
      {"cross_entropy", [&] { cross_entropy(g, labels.to(kCuda), row); }},
      {"nll_loss", [&] { nll_loss(g, labels); }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.op);
    try {
      c.call();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(text.find(std::string(c.op) + ": tensors must be on one device; got "), 0u) << text;
      EXPECT_NE(text.find(" cuda:0"), std::string::npos) << text;
      EXPECT_NE(text.find(" cpu"), std::string::npos) << text;
    }
  }
}

TEST_F(CudaErrors, a_device_that_is_not_there_is_refused_with_how_many_there_are) {
  const auto count = backend(DeviceType::kCUDA).device_count();
  const Device absent(DeviceType::kCUDA, count);
  const std::string text = "device index must be below " + std::to_string(count);
  EXPECT_THROWS_WITH(ones({2}).to(absent), DeviceError, text);
  EXPECT_THROWS_WITH(zeros({2}, {.device = absent}), DeviceError, text);
  EXPECT_THROWS_WITH(synchronize(absent), DeviceError, text);
  EXPECT_EQ(ones({2}).to(kCuda).to_vector<float>(), std::vector<float>({1, 1}));
}

TEST_F(CudaErrors, more_memory_than_there_is_names_the_device_and_leaves_it_usable) {
  const Tensor held = ones({1 << 20}).to(kCuda);
  EXPECT_THROWS_WITH(empty({int64_t{1} << 45}, {.device = kCuda}), OutOfMemoryError, "cuda:0");
  EXPECT_EQ(ones({2}).to(kCuda).to_vector<float>(), std::vector<float>({1, 1}));
}

}  // namespace
}  // namespace tarn
