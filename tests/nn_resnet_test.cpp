// nn_resnet_test.cpp - the networks have the sizes and names of the published ones.
#include <gtest/gtest.h>

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"
#include "tarn/nn/models/resnet.h"
#include "tarn/tests/temp_folder.h"

namespace tarn::nn::models {
namespace {

TEST(ResNetTest, resnet50_has_the_sizes_and_names_of_torchvision) {
  const ResNet net({.depth = 50});
  EXPECT_EQ(net.num_parameters(), 25557032);
  EXPECT_EQ(net.parameters().size(), 161u);
  const TensorDict state = net.state_dict();
  EXPECT_EQ(state.size(), 320u);
  EXPECT_EQ(state.begin()->first, "conv1.weight");
  EXPECT_EQ((state.end() - 1)->first, "fc.bias");
  EXPECT_EQ(state["conv1.weight"].sizes(), (Shape{64, 3, 7, 7}));
  EXPECT_EQ(state["layer1.0.downsample.0.weight"].sizes(), (Shape{256, 64, 1, 1}));
  EXPECT_EQ(state["layer2.0.downsample.1.running_var"].sizes(), (Shape{512}));
  EXPECT_EQ(state["layer4.2.conv2.weight"].sizes(), (Shape{512, 512, 3, 3}));
  EXPECT_EQ(state["layer4.2.bn3.num_batches_tracked"].dtype(), DType::kI64);
  EXPECT_EQ(state["fc.weight"].sizes(), (Shape{1000, 2048}));
}

TEST(ResNetTest, resnet18_has_the_sizes_and_names_of_torchvision) {
  const auto net = make_resnet("resnet18");
  EXPECT_EQ(net->num_parameters(), 11689512);
  EXPECT_EQ(net->parameters().size(), 62u);
  const TensorDict state = net->state_dict();
  EXPECT_EQ(state.size(), 122u);
  EXPECT_FALSE(state.contains("layer1.0.downsample.0.weight"));
  EXPECT_EQ(state["layer2.0.downsample.0.weight"].sizes(), (Shape{128, 64, 1, 1}));
}

TEST(ResNetTest, small_networks_have_the_published_sizes_and_names) {
  // Table of the reference repository: 0.27M, 0.46M, 0.66M, 0.85M, 1.7M.
  const std::pair<const char*, int64_t> rows[] = {{"resnet20", 269722},
                                                  {"resnet32", 464154},
                                                  {"resnet44", 658586},
                                                  {"resnet56", 853018},
                                                  {"resnet110", 1727962}};
  for (const auto& [name, count] : rows) {
    EXPECT_EQ(make_resnet(name, {.classes = 10})->num_parameters(), count) << name;
  }
  const auto a = make_resnet("resnet8", {.classes = 10});
  const auto b = make_resnet("resnet8", {.classes = 10, .shortcut = Shortcut::kProjection});
  EXPECT_TRUE(a->state_dict().contains("layer3.0.bn2.running_mean"));
  EXPECT_TRUE(a->state_dict().contains("linear.weight"));
  EXPECT_FALSE(a->state_dict().contains("layer2.0.shortcut.0.weight"));
  EXPECT_EQ(b->state_dict()["layer2.0.shortcut.0.weight"].sizes(), (Shape{32, 16, 1, 1}));
  EXPECT_TRUE(b->state_dict().contains("layer2.0.shortcut.1.bias"));
}

TEST(ResNetTest, forward_and_backward_reach_every_parameter) {
  manual_seed(0);
  const std::pair<const char*, MakeResNetOptions> rows[] = {
      {"resnet8", {.classes = 10, .in_channels = 1}},
      {"resnet8", {.classes = 10, .shortcut = Shortcut::kProjection}},
      {"resnet18", {.classes = 7, .cifar_stem = true}},
      {"resnet50", {.classes = 7}}};
  for (const auto& [name, options] : rows) {
    const auto net = make_resnet(name, options);
    const Tensor y = (*net)(randn({2, options.in_channels, 32, 32}));
    EXPECT_EQ(y.sizes(), (Shape{2, options.classes}));
    mul(y, y).sum().backward();
    for (const auto& [parameter, tensor] : net->named_parameters()) {
      EXPECT_TRUE(tensor.grad().defined()) << name << " " << parameter;
    }
  }
}

TEST(ResNetTest, pads_the_shortcut_on_both_sides_of_the_channels) {
  BasicBlock block({.in = 2, .width = 4, .stride = 2, .shortcut = Shortcut::kPad});
  block.conv2.weight.detach().zero_();  // leaves relu(bias + shortcut), bias 0
  const Tensor x = arange(1, 33, 1, {.dtype = DType::kF32}).view({1, 2, 4, 4});
  const std::vector<int> y = block(x).to_vector<int>();
  EXPECT_EQ(y, (std::vector<int>{0, 0, 0, 0, 1, 3, 9, 11, 17, 19, 25, 27, 0, 0, 0, 0}));
}

TEST(ResNetTest, zero_init_residual_makes_blocks_the_identity) {
  ResNet net({.depth = 18, .classes = 2, .cifar_stem = true, .zero_init_residual = true});
  auto& block = dynamic_cast<BasicBlock&>(net.layer1[1]);
  const Tensor x = relu(randn({1, 64, 4, 4}));
  EXPECT_TRUE(equal(block(x), x));
}

TEST(ResNetTest, explains_unknown_models) {
  EXPECT_MESSAGE(ValueError, make_resnet("resnet19"), "no model 'resnet19'; there are resnet8, ");
  EXPECT_MESSAGE(ValueError, ResNet({.depth = 20}), "must be 18, 34, 50, 101 or 152; got 20");
  EXPECT_MESSAGE(ValueError, CifarResNet({.depth = 18}), "depth must be 6 n + 2");
}

}  // namespace
}  // namespace tarn::nn::models
