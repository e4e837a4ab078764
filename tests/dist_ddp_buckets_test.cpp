// dist_ddp_buckets_test.cpp - DDP: which gradients travel together, and what is refused at start.
#include "tarn/autograd/functions.h"
#include "tarn/core/backend.h"
#include "tarn/core/factory.h"
#include "tarn/dist/ddp.h"
#include "tarn/dist/hooks.h"
#include "tarn/dist/reducer.h"
#include "tarn/nn/linear.h"
#include "tarn/nn/models/mlp.h"
#include "tarn/tests/dist_tools.h"
#include "tarn/tests/tests_throws.h"

namespace tarn::dist {
namespace {

TEST(DdpBuckets, the_last_gradients_to_come_travel_apart) {
  run_local(2, [](ProcessGroup& group) {
    nn::models::Mlp net({.sizes = {8, 64, 64, 1}});
    const double first_layer = 4 * (8 * 64 + 64);  // bytes; its gradients are the last to come
    for (const double room : {first_layer + 100, first_layer, 0.0}) {
      DistributedDataParallel ddp(net, group,
                                  {.first_bucket_mb = 25, .last_bucket_mb = room / (1 << 20)});
      for (int backward = 0; backward < 2; ++backward) {  // the second in the order of arrival
        mean(net(ones({4, 8}))).backward();
        const auto& each = ddp.stats().each;
        ASSERT_EQ(each.size(), room > 0 ? 2u : 1u) << room;
        EXPECT_EQ(each.back().parameters, room > 0 ? 2 : 6) << room;
        EXPECT_EQ(each.back().bytes == static_cast<int64_t>(first_layer), room > 0) << room;
      }
      net.zero_grad();
    }
  });
}

// Whatever the others hold: an eighth of all here, or less where bucket_cap_mb says so.
TEST(DdpBuckets, the_last_one_is_as_large_as_it_may_be) {
  run_local(2, [](ProcessGroup& group) {
    nn::models::Mlp net({.sizes = {8, 64, 64, 1}});
    const double two_layers = 4 * (8 * 64 + 64 + 64 * 64 + 64), one_layer = 4 * (64 + 1);
    constexpr double kMiB = 1 << 20;
    for (const double cap : {25.0, 1e-5}) {
      DistributedDataParallel ddp(net, group,
                                  {.bucket_cap_mb = cap,
                                   .first_bucket_mb = one_layer / kMiB,
                                   .last_bucket_mb = two_layers / kMiB});
      for (int backward = 0; backward < 2; ++backward) {
        mean(net(ones({4, 8}))).backward();
        const auto& each = ddp.stats().each;
        ASSERT_EQ(each.size(), 2u) << cap;
        EXPECT_EQ(each.back().parameters, 4) << cap;
        EXPECT_EQ(each.back().bytes, static_cast<int64_t>(two_layers)) << cap;
      }
      net.zero_grad();
    }
  });
}

TEST(DdpStart, options_are_checked) {
  const auto group = make_local_groups(1)[0];
  nn::models::Mlp net({.sizes = {2, 1}});
  EXPECT_THROWS_WITH(DistributedDataParallel(net, *group, {.bucket_cap_mb = 0}), ValueError,
                     "ddp: bucket sizes must be above 0 MiB; got bucket_cap_mb=0");
  EXPECT_THROWS_WITH(DistributedDataParallel(net, *group, {.last_bucket_mb = -1}), ValueError,
                     "first_bucket_mb=1, last_bucket_mb=-1");
  EXPECT_THROWS_WITH(DistributedDataParallel(net, *group, {.check_every = -1}), ValueError,
                     "ddp: check_every must not be negative");
  EXPECT_THROWS_WITH(compress_hook(DType::kF32), DTypeError, "compress_hook: f16 or bf16; got f32");
  net.requires_grad_(false);
  EXPECT_THROWS_WITH(DistributedDataParallel(net, *group), ValueError,
                     "ddp: no parameter requires a gradient");
}

TEST(DdpStart, a_module_on_several_devices_is_refused) {
  if (!has_backend(DeviceType::kCUDA)) GTEST_SKIP() << why_no_backend(DeviceType::kCUDA);
  class Spread : public nn::Module {
   public:
    nn::Linear a{this, "a", {.in = 2, .out = 2}}, b{this, "b", {.in = 2, .out = 2}};
    nn::Buffer seen{this, "seen", zeros({1})};
  };
  const auto group = make_local_groups(1)[0];
  const Device gpu(DeviceType::kCUDA, 0);
  Spread net;
  net.b.to(gpu);
  const char* text =
      "ddp: the module must be on one device; got a.weight on cpu, b.weight on cuda:0; move it to "
      "one";
  EXPECT_THROWS_WITH(DistributedDataParallel(net, *group), DeviceError, text);
  EXPECT_THROWS_WITH(Reducer(*group, net.named_parameters(), {}), DeviceError, text);
  net.a.to(gpu);  // now only the buffer is left behind
  EXPECT_THROWS_WITH(DistributedDataParallel(net, *group), DeviceError,
                     "got a.weight on cuda:0, seen on cpu");
}

}  // namespace
}  // namespace tarn::dist
