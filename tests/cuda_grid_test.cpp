// cuda_grid_test.cpp - a kernel gives the same bits however few blocks it gets and in whatever
// order the emulator runs its threads.
//
// With as many blocks as there is work a block goes round its loop once, and a barrier missing at
// the end of a round shows nowhere. Here one or two blocks do all the work.
#include <functional>

#include "gpu_tools.h"
#include "numeric_tools.h"

#include "tarn/core/kernels.h"
#include "tarn/cuda/conv_shape.h"
#include "tarn/cuda/launch.h"
#include "tarn/cuda/matmul.h"
#include "tarn/optim/adam.h"
#include "tarn/optim/clip.h"
#if defined(TARN_CUDA_EMU)
#include "tarn/cuda/emu/hooks.h"
#endif

namespace tarn {
namespace {

using Tensors = std::vector<Tensor>;
using testing::random_tensor;

/// Something to compute on the GPU from f32 inputs of these sizes.
struct Job {
  std::string name;
  std::vector<Shape> sizes;
  std::function<Tensors(const Tensors&)> run;
};

std::ostream& operator<<(std::ostream& out, const Job& job) {
  return out << job.name;
}

/// Our own kernels, not a library's, for a while.
class OwnKernels {
 public:
  OwnKernels() : table_(mutable_kernels(DeviceType::kCUDA)), saved_(table_) {
    table_.matmul.matmul = cuda::own_matmul_slot;
    table_.conv = cuda::own_conv_kernels();
  }
  ~OwnKernels() { table_ = saved_; }
  OwnKernels(const OwnKernels&) = delete;
  OwnKernels& operator=(const OwnKernels&) = delete;

 private:
  KernelTable& table_;
  KernelTable saved_;
};

/// True if everything takes a hundred times longer.
bool watches_races() {
#if defined(TARN_CUDA_EMU)
  return emu::watches_races();
#else
  return false;
#endif
}

/// Blocks and threads forwards (0), backwards (1) or shuffled (2); nothing on a real GPU.
void set_order([[maybe_unused]] int order) {
#if defined(TARN_CUDA_EMU)
  emu::settings().order = order;
#endif
}

Tensor integers(int64_t n, int64_t end, uint64_t seed) {
  std::vector<int64_t> values;
  for (double v : testing::random_numbers(n, seed)) {
    values.push_back(static_cast<int64_t>((v + 1) / 2 * static_cast<double>(end)));
  }
  return from_vector(values, {n}).to(kCuda);
}

/// What the job gives, and the gradients of its inputs where it has any.
std::vector<std::vector<double>> results(const Job& job) {
  manual_seed(7);
  Tensors inputs;
  for (size_t i = 0; i < job.sizes.size(); ++i) {
    inputs.push_back(random_tensor(job.sizes[i], i + 1, DType::kF32).to(kCuda));
    inputs.back().set_requires_grad(true);
  }
  Tensors all = job.run(inputs);
  for (size_t i = 0, count = all.size(); i < count; ++i) {
    if (!all[i].requires_grad()) continue;
    const Tensor roots[] = {all[i]};
    const Tensor gradients[] = {random_tensor(all[i].sizes(), 100 + i, DType::kF32).to(kCuda)};
    for (const Tensor& g : grad(roots, inputs, gradients, {.retain_graph = true})) {
      all.push_back(g);
    }
  }
  std::vector<std::vector<double>> values;
  for (const Tensor& t : all) values.push_back(testing::numbers(t.detach()));
  return values;
}

template <class F>
Job on_first(std::string name, const Shape& sizes, F f) {
  return {std::move(name), {sizes}, [f](const Tensors& in) { return Tensors{f(in[0])}; }};
}

Tensors pair(const std::pair<Tensor, Tensor>& both) {
  return {both.first, both.second};
}

std::vector<Job> norm_jobs() {
  const auto batch = [](MemoryFormat format) {
    return [format](const Tensors& in) {
      return Tensors{
          batch_norm_act(contiguous(in[0], format), {}, {}, {}, in[1], in[2], {.training = true})};
    };
  };
  return {
      {"batch_norm", {{3, 70, 5, 3}, {70}, {70}}, batch(MemoryFormat::kContiguous)},
      {"batch_norm_last", {{3, 70, 5, 3}, {70}, {70}}, batch(MemoryFormat::kChannelsLast)},
      {"batch_norm_slices", {{1100, 70}, {70}, {70}}, batch(MemoryFormat::kContiguous)},
      {"batch_norm_long", {{2, 3, 70, 80}, {3}, {3}}, batch(MemoryFormat::kContiguous)},
      {"layer_norm",
       {{70, 72}, {72}, {72}},
       [](const Tensors& in) { return Tensors{layer_norm(in[0], {72}, in[1], in[2])}; }},
      {"layer_norm_long",
       {{5, 1333}, {1333}, {1333}},
       [](const Tensors& in) { return Tensors{layer_norm(in[0], {1333}, in[1], in[2])}; }},
      on_first("softmax_rows", {50, 133}, [](const Tensor& x) { return softmax(x, 1); }),
      on_first("softmax_long", {3, 3000}, [](const Tensor& x) { return softmax(x, 1); }),
      on_first("softmax_columns", {5, 40, 37}, [](const Tensor& x) { return softmax(x, 1); }),
      on_first("cross_entropy_many", {17000, 2},
               [](const Tensor& x) { return cross_entropy(x, integers(17000, 2, 3)); }),
      on_first("cross_entropy", {50, 133},
               [](const Tensor& x) { return cross_entropy(x, integers(50, 133, 3)); }),
      on_first("cross_entropy_weighted", {50, 133},
               [](const Tensor& x) {
                 const Tensor weight = random_tensor({133}, 9, DType::kF32).to(kCuda);
                 return cross_entropy(x, integers(50, 133, 3), weight * weight,
                                      {.label_smoothing = 0.1});
               }),
  };
}

std::vector<Job> product_jobs() {
  const auto product = [](const Tensors& in) { return Tensors{matmul(in[0], in[1])}; };
  const auto conv = [](Conv2dOptions options) {
    return [options](const Tensors& in) { return Tensors{conv2d(in[0], in[1], in[2], options)}; };
  };
  return {
      {"matmul", {{150, 20}, {20, 130}}, product},
      {"matmul_deep", {{70, 700}, {700, 70}}, product},
      {"matmul_skinny_across", {{2, 40}, {40, 100}}, product},
      {"matmul_skinny_along", {{100, 80}, {80, 2}}, product},
      {"conv", {{2, 20, 9, 8}, {68, 20, 3, 3}, {68}}, conv({.pad_h = 1, .pad_w = 1})},
      {"conv_depthwise", {{2, 40, 9, 8}, {40, 1, 3, 3}, {40}}, conv({.groups = 40})},
      {"attention",
       {{1, 2, 70, 20}, {1, 2, 75, 20}, {1, 2, 75, 24}},
       [](const Tensors& in) {
         return Tensors{scaled_dot_product_attention(in[0], in[1], in[2])};
       }},
  };
}

/// Where the first index lies that is out of range, found by several blocks.
Tensor index_check() {
  std::vector<int64_t> values(33000, 5);
  for (size_t i : {32000u, 777u, 32999u}) values[i] = 9;
  const Tensor index = from_vector(values, {33000}).to(kCuda);
  IndexCheck check;
  check.op = "take";
  check.high = 9;
  int64_t position = 0;
  const bool blocking = cuda::set_blocking(true);
  kernels(kCuda).index.find_out_of_range(index, check, &position, current_stream(kCuda));
  cuda::set_blocking(blocking);
  return from_vector(std::vector<int64_t>{position}, {1});
}

std::vector<Job> order_jobs() {
  return {
      on_first("sort_short", {40, 100}, [](const Tensor& x) { return sort(x).first; }),
      on_first("sort_long", {2, 9000}, [](const Tensor& x) { return sort(x).first; }),
      {"topk", {{2, 9000}}, [](const Tensors& in) { return pair(topk(in[0], 5)); }},
      {"half_of_columns",
       {{5000, 3}},
       [](const Tensors& in) { return pair(topk(in[0], 2500, 0)); }},
      on_first("cumsum_rows", {3, 3000}, [](const Tensor& x) { return cumsum(x, 1); }),
      on_first("cumsum_columns", {30, 300}, [](const Tensor& x) { return cumsum(x, 0); }),
      on_first("embedding_few", {50, 12},
               [](const Tensor& x) { return embedding(x, integers(400, 50, 4)); }),
      on_first("embedding_many", {30, 2},
               [](const Tensor& x) { return embedding(x, integers(9000, 30, 4)); }),
      on_first("scatter_few", {3, 2000},
               [](const Tensor& x) {
                 const Tensor into = zeros({3, 2}, {.device = kCuda});
                 return scatter_add(into, 1, integers(6000, 2, 6).view({3, 2000}), x);
               }),
      on_first("gather", {40, 30},
               [](const Tensor& x) {
                 return gather(x, 0, integers(1200, 40, 5).view({40, 30}));
               }),
      {"index_check", {}, [](const Tensors&) { return Tensors{index_check()}; }},
      on_first("nonzero", {9000}, [](const Tensor& x) { return nonzero(relu(x.detach())); }),
      on_first("triangle", {70, 300}, [](const Tensor& x) { return tril(x, 3); }),
  };
}

std::vector<Job> other_jobs() {
  return {
      on_first("elementwise", {70, 90}, [](const Tensor& x) { return gelu(x + x.select(0, 3)); }),
      on_first("transpose", {70, 90}, [](const Tensor& x) { return contiguous(t(x)); }),
      on_first("dropout", {70, 90}, [](const Tensor& x) { return dropout(x, 0.3); }),
      on_first("sum_rows", {90, 700}, [](const Tensor& x) { return sum(x, {1}); }),
      on_first("sum_columns", {300, 90}, [](const Tensor& x) { return sum(x, {0}); }),
      on_first("sum_all", {90, 700}, [](const Tensor& x) { return sum(x); }),
      on_first("norm", {90, 70}, [](const Tensor& x) { return norm(x, 2, {0}); }),
      {"var_mean", {{90, 300}}, [](const Tensors& in) { return pair(var_mean(in[0], {1})); }},
      {"max", {{90, 300}}, [](const Tensors& in) { return pair(max(in[0], 1)); }},
      on_first("max_pool", {2, 5, 30, 31}, [](const Tensor& x) { return max_pool2d(x, 3, 2, 1); }),
      on_first("avg_pool", {2, 5, 30, 31}, [](const Tensor& x) { return avg_pool2d(x, 3, 2, 1); }),
      on_first("global_pool", {3, 40, 7, 7},
               [](const Tensor& x) { return adaptive_avg_pool2d(x, 1); }),
      on_first("global_pool_last", {3, 40, 7, 7},
               [](const Tensor& x) {
                 return adaptive_avg_pool2d(contiguous(x, MemoryFormat::kChannelsLast), 1);
               }),
      {"adam_and_clip",
       {{3, 5000}, {7}, {9000}},
       [](Tensors params) {
         for (size_t i = 0; i < params.size(); ++i) {
           params[i].set_grad(random_tensor(params[i].sizes(), 20 + i, DType::kF32).to(kCuda));
         }
         const double total = optim::clip_grad_norm_(params, 1.5);
         optim::Adam(params, {.lr = 0.1}).step();
         Tensors out{full({}, total, {.dtype = DType::kF64})};
         for (const Tensor& p : params) out.push_back(p.detach());
         return out;
       }},
  };
}

class CudaGrid : public ::testing::TestWithParam<Job> {
 protected:
  void SetUp() override { TARN_NEEDS_GPU(); }
  void TearDown() override {
    cuda::set_most_blocks(most_blocks_);
    set_order(order_);
  }

 private:
  int64_t most_blocks_ = cuda::set_most_blocks(0);
#if defined(TARN_CUDA_EMU)
  int order_ = emu::settings().order;
#else
  int order_ = 0;
#endif
};

TEST_P(CudaGrid, any_number_of_blocks_gives_the_same_bits) {
  const OwnKernels own;
  set_order(0);
  const auto want = results(GetParam());
  for (int64_t blocks : {1, 2}) {
    for (int order : {1, 2}) {
      if (watches_races() && blocks + order > 2) continue;  // many blocks and one are enough
      cuda::set_most_blocks(blocks);
      set_order(order);
      EXPECT_EQ(results(GetParam()), want) << blocks << " blocks, order " << order;
    }
  }
}

std::string name_of(const ::testing::TestParamInfo<Job>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(norms, CudaGrid, ::testing::ValuesIn(norm_jobs()), name_of);
INSTANTIATE_TEST_SUITE_P(products, CudaGrid, ::testing::ValuesIn(product_jobs()), name_of);
INSTANTIATE_TEST_SUITE_P(orders, CudaGrid, ::testing::ValuesIn(order_jobs()), name_of);
INSTANTIATE_TEST_SUITE_P(others, CudaGrid, ::testing::ValuesIn(other_jobs()), name_of);

}  // namespace
}  // namespace tarn
