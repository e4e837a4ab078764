// dist_ddp_nested_test.cpp - DistributedDataParallel where a backward runs inside another, and
// where it does not though it looks so.
#include "dist_tools.h"

#include "tarn/autograd/functions.h"
#include "tarn/autograd/recompute.h"
#include "tarn/core/random.h"
#include "tarn/dist/ddp.h"
#include "tarn/nn/linear.h"

namespace tarn::dist {
namespace {

constexpr int64_t kSize = 6;

/// One layer, used by two segments that may be recomputed.
class Shared : public nn::Module {
 public:
  nn::Linear layer{this, "layer", {.in = kSize, .out = kSize}};
  nn::Linear last{this, "last", {.in = kSize, .out = kSize}};
  bool recompute = false;

  Tensor forward(const Tensor& x) override {
    const auto segment = [this](const Tensor& in) { return tanh(layer(in)); };
    if (!recompute) return last(segment(segment(x)));
    return last(checkpoint(segment, checkpoint(segment, x)));
  }
};

Tensor data(int rank) {
  Generator generator(static_cast<uint64_t>(10 + rank));
  return randn({4, kSize}, {}, &generator);
}

std::vector<double> gradient(const Shared& net) {
  return net.layer.weight.grad().to_vector<double>();
}

// The graph is the recorded one: a parameter gets one gradient, whoever uses it.
TEST(DdpNested, recomputed_segments_may_share_a_layer) {
  run_local(2, [](ProcessGroup& group) {
    Shared net;
    DistributedDataParallel ddp(net, group, {.first_bucket_mb = 1e-6});
    std::vector<std::vector<double>> gradients;
    for (const bool recompute : {false, true, true}) {  // buckets are rebuilt after the first
      net.recompute = recompute;
      net.zero_grad();
      sum(square(net(data(group.rank())))).backward();
      gradients.push_back(gradient(net));
    }
    EXPECT_EQ(gradients[1], gradients[0]);
    EXPECT_EQ(gradients[2], gradients[0]);
  });
}

// A hook runs a backward of the whole model inside that of another forward.
void nested_backward(Shared& net, int rank) {
  const Tensor x = data(rank), inner = sum(square(net(x))), y = net(x);
  y.register_hook([inner](const Tensor&) {
    inner.backward();
    return Tensor();
  });
  sum(square(y)).backward();
}

TEST(DdpNested, a_backward_in_a_hook_adds_its_gradients_while_nothing_was_sent) {
  run_local(2, [](ProcessGroup& group) {
    Shared net;
    DistributedDataParallel ddp(net, group, {.overlap = false});
    sum(square(net(data(group.rank())))).backward();
    std::vector<double> twice = gradient(net);
    for (double& g : twice) g *= 2;
    for (int step = 0; step < 2; ++step) {
      net.zero_grad();
      nested_backward(net, group.rank());
      const std::vector<double> got = gradient(net);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_NEAR(got[i], twice[i], 1e-5 * (1 + std::abs(twice[i])));
      }
    }
  });
}

TEST(DdpNested, a_backward_in_a_hook_is_an_error_once_gradients_were_sent) {
  const auto errors = test::errors_of("local", 2, [](ProcessGroup& group) {
    Shared net;
    DistributedDataParallel ddp(net, group, {.first_bucket_mb = 1e-6});
    nested_backward(net, group.rank());
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find(" got a second gradient in one backward on rank "), std::string::npos)
        << error;
    EXPECT_NE(error.find("; call backward outside of hooks, or set overlap = false"),
              std::string::npos)
        << error;
  }
}

}  // namespace
}  // namespace tarn::dist
