// dist_sync_batch_norm_test.cpp - batch norm over ranks equals batch norm of the whole batch.
#include <cmath>
#include <random>
#include <utility>

#include "tarn/autograd/autocast.h"
#include "tarn/autograd/engine.h"
#include "tarn/autograd/functions.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"
#include "tarn/dist/ddp.h"
#include "tarn/dist/sync_batch_norm.h"
#include "tarn/nn/conv.h"
#include "tarn/nn/linear.h"
#include "tarn/nn/norm.h"
#include "tarn/optim/sgd.h"
#include "tarn/tests/dist_tools.h"
#include "tarn/tests/tests_throws.h"

namespace tarn::dist {
namespace {

Tensor random_of(const Shape& sizes, unsigned seed, DType dtype = DType::kF64) {
  std::mt19937 random(seed);
  Tensor x = empty(sizes, {.dtype = DType::kF64});
  for (int64_t i = 0; i < x.numel(); ++i) {
    x.data<double>()[i] = static_cast<double>(static_cast<int>(random() % 2000) - 900) / 500.0;
  }
  return raw::to(x, dtype);
}

void expect_near(const Tensor& got, const Tensor& wanted, double tolerance) {
  ASSERT_EQ(got.sizes(), wanted.sizes());
  const auto a = got.to_vector<double>(), b = wanted.to_vector<double>();
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << i;
}

// What one call gives: output, gradients of x, weight, bias and residual, running statistics.
struct Result {
  Tensor y, gx, gw, gb, gr, mean, var;
};

// rows [begin, begin + n) of a batch of 7; over the group, or alone if it is null.
Result normalise(ProcessGroup* group, int64_t begin, int64_t n, bool relu, bool residual) {
  constexpr int64_t kBatch = 7, C = 3;
  const auto rows = [&](unsigned seed) {
    Tensor x = raw::clone(raw::narrow(random_of({kBatch, C, 2, 5}, seed), 0, begin, n));
    return x;
  };
  Tensor x = rows(1), r = rows(2), w = random_of({C}, 3), b = random_of({C}, 4);
  for (Tensor* t : {&x, &r, &w, &b}) t->set_requires_grad();
  const Tensor mean = random_of({C}, 5), var = raw::add(random_of({C}, 6), 4.0);
  const BatchNormOptions options{.training = true, .momentum = 0.3, .relu = relu};
  const Tensor added = residual ? r : Tensor();
  const Tensor y = group ? sync_batch_norm(*group, x, added, mean, var, w, b, options)
                         : batch_norm_act(x, added, mean, var, w, b, options);
  sum(y * rows(7)).backward();
  return {y.detach(), x.grad(), w.grad(), b.grad(), r.grad(), mean, var};
}

TEST(SyncBatchNorm, equals_batch_norm_of_the_whole_batch) {
  for (const std::vector<int64_t>& shares :
       {std::vector<int64_t>{7}, {4, 3}, {1, 5, 1}, {3, 0, 4}}) {
    for (bool relu : {false, true}) {
      for (bool residual : {false, true}) {
        const Result whole = normalise(nullptr, 0, 7, relu, residual);
        run_local(static_cast<int>(shares.size()), [&](ProcessGroup& g) {
          int64_t begin = 0;
          for (int r = 0; r < g.rank(); ++r) begin += shares[static_cast<size_t>(r)];
          const int64_t n = shares[static_cast<size_t>(g.rank())];
          Result mine = normalise(&g, begin, n, relu, residual);
          const auto part = [&](const Tensor& x) { return raw::narrow(x, 0, begin, n); };
          expect_near(mine.y, part(whole.y), 1e-12);
          expect_near(mine.gx, part(whole.gx), 1e-12);
          if (residual) expect_near(mine.gr, part(whole.gr), 1e-12);
          expect_near(mine.mean, whole.mean, 1e-12);
          expect_near(mine.var, whole.var, 1e-12);
          g.all_reduce({mine.gw, mine.gb})->wait();  // affine gradients are the ranks' own
          expect_near(mine.gw, whole.gw, 1e-12);
          expect_near(mine.gb, whole.gb, 1e-12);
        });
      }
    }
  }
}

// The gradients of a penalty on the gradients of x, weight and residual.
Result penalise(ProcessGroup* group, int64_t begin, int64_t n, bool relu, bool residual) {
  constexpr int64_t kBatch = 7, C = 3;
  const auto rows = [&](unsigned seed) {
    return raw::clone(raw::narrow(random_of({kBatch, C, 2, 5}, seed), 0, begin, n));
  };
  Tensor x = rows(1), r = rows(2), w = random_of({C}, 3), b = random_of({C}, 4);
  for (Tensor* t : {&x, &r, &w, &b}) t->set_requires_grad();
  const BatchNormOptions options{.training = true, .relu = relu};
  const Tensor added = residual ? r : Tensor();
  const Tensor y = group ? sync_batch_norm(*group, x, added, {}, {}, w, b, options)
                         : batch_norm_act(x, added, {}, {}, w, b, options);
  std::vector<Tensor> inputs{x, b};
  if (residual) inputs.push_back(r);
  const Tensor loss[] = {sum(y * y * rows(7))};
  const auto grads = grad(loss, inputs, {}, {.create_graph = true});
  for (const Tensor& g : grads) EXPECT_TRUE(g.requires_grad());
  Tensor penalty = sum(grads[0] * grads[0] * rows(8)) + sum(grads[1] * random_of({C}, 9));
  if (residual) penalty = penalty + sum(grads[2] * grads[2] * rows(10));
  penalty.backward();
  return {grads[0].detach(), x.grad(), w.grad(), b.grad(), r.grad(), {}, {}};
}

TEST(SyncBatchNorm, gradients_of_gradients_equal_those_of_the_whole_batch) {
  for (const std::vector<int64_t>& shares :
       {std::vector<int64_t>{7}, {4, 3}, {1, 5, 1}, {3, 0, 4}}) {
    for (bool relu : {false, true}) {
      for (bool residual : {false, true}) {
        const Result whole = penalise(nullptr, 0, 7, relu, residual);
        run_local(static_cast<int>(shares.size()), [&](ProcessGroup& g) {
          int64_t begin = 0;
          for (int r = 0; r < g.rank(); ++r) begin += shares[static_cast<size_t>(r)];
          const int64_t n = shares[static_cast<size_t>(g.rank())];
          const Result mine = penalise(&g, begin, n, relu, residual);
          const auto part = [&](const Tensor& x) { return raw::narrow(x, 0, begin, n); };
          expect_near(mine.y, part(whole.y), 1e-10);
          expect_near(mine.gx, part(whole.gx), 1e-8);
          if (residual) expect_near(mine.gr, part(whole.gr), 1e-8);
          g.all_reduce({mine.gw, mine.gb})->wait();
          expect_near(mine.gw, whole.gw, 1e-8);
          expect_near(mine.gb, whole.gb, 1e-8);
        });
      }
    }
  }
}

TEST(SyncBatchNorm, a_residual_of_another_dtype_is_promoted_under_autocast_as_in_batch_norm) {
  run_local(1, [](ProcessGroup& g) {
    const Tensor half = random_of({6, 3}, 1, DType::kBF16),
                 single = random_of({6, 3}, 2, DType::kF32);
    const BatchNormOptions options{.training = true, .relu = true};
    for (const auto& [x, residual] : {std::pair(half, single), std::pair(single, half)}) {
      EXPECT_THROWS_WITH(sync_batch_norm(g, x, residual, {}, {}, {}, {}, options), DTypeError,
                         "sync_batch_norm: residual must have x's dtype");
      const AutocastGuard autocast(DeviceType::kCPU, DType::kBF16);
      const Tensor y = sync_batch_norm(g, x, residual, {}, {}, {}, {}, options);
      EXPECT_EQ(y.dtype(), DType::kF32);
      expect_near(y, batch_norm_act(x, residual, {}, {}, {}, {}, options), 1e-5);
    }
  });
}

// Half a unit in the last place of the true value, and what f32 adds.
TEST(SyncBatchNorm, gradients_in_halves_are_rounded_once) {
  const Shape sizes{40, 3};
  const auto halves = [&](const Shape& s, unsigned seed) {
    return random_of(s, seed, DType::kBF16);
  };
  const auto wide = [](const Tensor& x) { return raw::clone(raw::to(x, DType::kF64)); };
  Tensor x = wide(halves(sizes, 1)), w = wide(halves({3}, 3)), b = wide(halves({3}, 4));
  for (Tensor* t : {&x, &w, &b}) t->set_requires_grad();
  batch_norm_act(x, {}, {}, {}, w, b, {.training = true}).backward(wide(halves(sizes, 2)));
  run_local(2, [&](ProcessGroup& g) {
    const auto rows = [&](const Tensor& t) {
      return raw::clone(raw::narrow(t, 0, 20 * g.rank(), 20));
    };
    Tensor mine = rows(halves(sizes, 1)), weight = halves({3}, 3), bias = halves({3}, 4);
    for (Tensor* t : {&mine, &weight, &bias}) t->set_requires_grad();
    sync_batch_norm(g, mine, {}, {}, {}, weight, bias, {.training = true})
        .backward(rows(halves(sizes, 2)));
    EXPECT_EQ(weight.grad().dtype(), DType::kBF16);
    const auto got = mine.grad().to_vector<double>(), wanted = rows(x.grad()).to_vector<double>();
    for (size_t i = 0; i < got.size(); ++i) {
      int exponent = 0;
      std::frexp(wanted[i], &exponent);  // in [2^(e-1), 2^e): units of 2^(e-8)
      ASSERT_NEAR(got[i], wanted[i], std::ldexp(0.5, exponent - 8) + 1e-6) << i;
    }
  });
}

TEST(SyncBatchNorm, one_value_in_all_is_an_error_on_all_ranks) {
  const auto errors = test::errors_of("local", 2, [](ProcessGroup& g) {
    sync_batch_norm(g, zeros({g.rank(), 2}), {}, {}, {}, {}, {}, {.training = true});
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("sync_batch_norm: needs more than one value per channel"),
              std::string::npos)
        << error;
  }
}

class Net : public nn::Module {
 public:
  Net() {
    for (const auto& [name, p] : named_parameters()) {
      raw::copy_(p, raw::mul(random_of(p.sizes(), 11, DType::kF32), 0.3));  // of no generator
    }
  }
  Tensor forward(const Tensor& x) override {
    const Tensor h = first.relu(a(x));
    return out(second.add_relu(b(h), h).flatten(1));
  }
  nn::Conv2d a{this, "a", {.in = 2, .out = 4, .kernel = 3, .padding = 1}};
  nn::BatchNorm2d first{this, "first", {.features = 4}};
  nn::Conv2d b{this, "b", {.in = 4, .out = 4, .kernel = 3, .padding = 1}};
  nn::BatchNorm2d second{this, "second", {.features = 4}};
  nn::Linear out{this, "out", {.in = 64, .out = 3}};
};

// Losses of the global batch of 12 over 15 steps.
std::vector<double> train(ProcessGroup& g) {
  Net net;
  EXPECT_EQ(convert_sync_batch_norm(net, g), 2);
  const DistributedDataParallel ddp(net, g);
  optim::SGD sgd(net.parameters(), {.lr = 0.002, .momentum = 0.5});
  std::vector<double> losses;
  const int64_t n = 12 / g.size();
  for (unsigned step = 0; step < 15; ++step) {
    const auto mine = [&](const Shape& sizes, unsigned seed) {
      return raw::clone(raw::narrow(random_of(sizes, seed, DType::kF32), 0, g.rank() * n, n));
    };
    sgd.zero_grad();
    const Tensor d = net(mine({12, 2, 4, 4}, 100 + step)) - mine({12, 3}, 200 + step);
    const Tensor loss = mean(d * d);
    loss.backward();
    sgd.step();
    const Tensor all = loss.detach().clone();
    g.all_reduce(all, ReduceOp::kAvg)->wait();
    losses.push_back(all.item());
  }
  return losses;
}

TEST(SyncBatchNorm, backward_may_outlive_the_module_and_its_group) {
  run_local(2, [](ProcessGroup& group) {
    const int both[] = {0, 1};
    Tensor x = raw::narrow(random_of({4, 3, 2}, 1), 0, 2 * group.rank(), 2).clone();
    const Tensor factors = raw::narrow(random_of({4, 3, 2}, 2), 0, 2 * group.rank(), 2);
    x.set_requires_grad();
    const auto gradient = [&](const Tensor& y) {
      sum(y * factors).backward();
      const Tensor g = x.grad().clone();
      x.zero_grad();
      return g;
    };
    auto norm = std::make_unique<nn::BatchNorm1d>(nn::BatchNormOptions{.features = 3});
    norm->to(DType::kF64);
    convert_sync_batch_norm(*norm, group);
    const Tensor wanted = gradient((*norm)(x));
    const Tensor y = (*norm)(x);
    norm.reset();  // the only one that held the group of its messages
    expect_near(gradient(y), wanted, 1e-12);

    auto own = group.subgroup(both);
    const Tensor z = sync_batch_norm(*own, x, {}, {}, {}, {}, {}, {.training = true});
    own.reset();
    expect_near(gradient(z), wanted, 1e-12);
  });
}

TEST(SyncBatchNorm, a_network_trains_as_one_process_does) {
  std::vector<double> alone;
  run_local(1, [&](ProcessGroup& g) { alone = train(g); });
  for (const char* transport : {"local", "host", "gloo"}) {
    if (transport == std::string("gloo") && !gloo_available()) continue;
    for (int size : {2, 3, 4}) {
      test::run_ranks(transport, size, [&](ProcessGroup& g) {
        const auto losses = train(g);
        for (size_t i = 0; i < losses.size(); ++i) ASSERT_NEAR(losses[i], alone[i], 2e-5) << i;
      });
    }
  }
}

}  // namespace
}  // namespace tarn::dist
