// resnet.cpp - blocks, stages, and the networks made of them.
#include "tarn/nn/models/resnet.h"

#include <array>

#include "tarn/autograd/functions.h"
#include "tarn/nn/init.h"

namespace tarn::nn::models {
namespace {

/// A convolution in front of a batch norm needs no bias.
Conv2dOptions conv3x3(int64_t in, int64_t out, int64_t stride = 1) {
  return {.in = in, .out = out, .kernel = 3, .stride = stride, .padding = 1, .bias = false};
}
Conv2dOptions conv1x1(int64_t in, int64_t out, int64_t stride = 1) {
  return {.in = in, .out = out, .kernel = 1, .stride = stride, .bias = false};
}

bool changes_size(const BlockOptions& o, int64_t out) {
  return o.stride != 1 || o.in != out;
}

/// Fills in the projection of a block whose output has other sizes than its input.
void make_projection(Module* block, std::optional<Sequential>& projection, const BlockOptions& o,
                     int64_t out) {
  if (o.shortcut != Shortcut::kProjection || !changes_size(o, out)) return;
  projection.emplace(block, o.naming == Naming::kCifar ? "shortcut" : "downsample");
  projection->add<Conv2d>(conv1x1(o.in, out, o.stride));
  projection->add<BatchNorm2d>({.features = out});
}

/// Option A: x[:, :, ::2, ::2], with the new channels as zeros on both sides of the old ones.
Tensor pad_shortcut(const Tensor& x, const BlockOptions& o) {
  const Tensor small = x.slice(2, 0, x.size(2), o.stride).slice(3, 0, x.size(3), o.stride);
  const int64_t extra = o.width - o.in;
  return tarn::pad(small, {0, 0, 0, 0, extra / 2, extra - extra / 2});
}

/// `count` blocks; the first one changes sizes. Returns the channels it puts out.
template <class Block>
int64_t add_stage(Sequential& stage, int count, BlockOptions o) {
  for (int i = 0; i < count; ++i) {
    stage.add<Block>(o);
    o.in = o.width * Block::kExpansion;
    o.stride = 1;
  }
  return o.in;
}

struct Layout {
  int depth;
  bool bottleneck;
  std::array<int, 4> blocks;
};
constexpr Layout kLayouts[] = {{18, false, {2, 2, 2, 2}},
                               {34, false, {3, 4, 6, 3}},
                               {50, true, {3, 4, 6, 3}},
                               {101, true, {3, 4, 23, 3}},
                               {152, true, {3, 8, 36, 3}}};

const Layout& layout_of(int depth) {
  for (const Layout& layout : kLayouts) {
    if (layout.depth == depth) return layout;
  }
  tarn::detail::fail<ValueError>("ResNet: depth must be 18, 34, 50, 101 or 152; got ", depth);
}

int checked_cifar_depth(int depth) {
  TARN_CHECK_AS(ValueError, depth >= 8 && (depth - 2) % 6 == 0,
                "CifarResNet: depth must be 6 n + 2 (8, 20, 32, 44, 56, 110); got ", depth);
  return depth;
}

Conv2dOptions stem(const ResNetOptions& o) {
  if (o.cifar_stem) return conv3x3(o.in_channels, 64);
  return {.in = o.in_channels, .out = 64, .kernel = 7, .stride = 2, .padding = 3, .bias = false};
}

Tensor pool_and_classify(const Tensor& x, Linear& classifier) {
  return classifier(tarn::adaptive_avg_pool2d(x, 1).flatten(1));
}

}  // namespace

BasicBlock::BasicBlock(const Options& o)
    : conv1(this, "conv1", conv3x3(o.in, o.width, o.stride)),
      bn1(this, "bn1", {.features = o.width}),
      conv2(this, "conv2", conv3x3(o.width, o.width)),
      bn2(this, "bn2", {.features = o.width}),
      options_(o) {
  make_projection(this, downsample, o, o.width);
}

Tensor BasicBlock::forward(const Tensor& x) {
  Tensor shortcut = x;
  if (downsample) {
    shortcut = (*downsample)(x);
  } else if (changes_size(options_, options_.width)) {
    shortcut = pad_shortcut(x, options_);
  }
  const Tensor y = bn1.relu(conv1(x));
  return bn2.add_relu(conv2(y), shortcut);
}

Bottleneck::Bottleneck(const Options& o)
    : conv1(this, "conv1", conv1x1(o.in, o.width)),
      bn1(this, "bn1", {.features = o.width}),
      conv2(this, "conv2", conv3x3(o.width, o.width, o.stride)),
      bn2(this, "bn2", {.features = o.width}),
      conv3(this, "conv3", conv1x1(o.width, o.width * kExpansion)),
      bn3(this, "bn3", {.features = o.width * kExpansion}) {
  make_projection(this, downsample, o, o.width * kExpansion);
}

Tensor Bottleneck::forward(const Tensor& x) {
  Tensor y = bn1.relu(conv1(x));
  y = bn2.relu(conv2(y));
  return bn3.add_relu(conv3(y), downsample ? (*downsample)(x) : x);
}

ResNet::ResNet(const Options& o)
    : conv1(this, "conv1", stem(o)),
      bn1(this, "bn1", {.features = 64}),
      fc(this, "fc", {.in = layout_of(o.depth).bottleneck ? 2048 : 512, .out = o.classes}),
      cifar_stem_(o.cifar_stem) {
  const Layout& layout = layout_of(o.depth);
  int64_t channels = 64;
  for (size_t i = 0; i < 4; ++i) {
    Sequential& stage = *std::array{&layer1, &layer2, &layer3, &layer4}[i];
    const BlockOptions block{.in = channels, .width = 64 << i, .stride = i == 0 ? 1 : 2};
    channels = layout.bottleneck ? add_stage<Bottleneck>(stage, layout.blocks[i], block)
                                 : add_stage<BasicBlock>(stage, layout.blocks[i], block);
  }
  apply([&](Module& m) {
    if (auto* conv = dynamic_cast<Conv2d*>(&m)) {
      init::kaiming_normal_(conv->weight, {.mode = init::FanMode::kFanOut,
                                           .nonlinearity = init::Nonlinearity::kRelu});
    }
    if (!o.zero_init_residual) return;
    if (auto* block = dynamic_cast<BasicBlock*>(&m)) init::zeros_(block->bn2.weight);
    if (auto* block = dynamic_cast<Bottleneck*>(&m)) init::zeros_(block->bn3.weight);
  });
}

Tensor ResNet::forward(const Tensor& x) {
  Tensor y = bn1.relu(conv1(x));
  if (!cifar_stem_) y = tarn::max_pool2d(y, 3, 2, 1);
  y = layer4(layer3(layer2(layer1(y))));
  return pool_and_classify(y, fc);
}

CifarResNet::CifarResNet(const Options& o)
    : conv1(this, "conv1", conv3x3(o.in_channels, 16)),
      bn1(this, "bn1", {.features = 16}),
      linear(this, "linear", {.in = 64, .out = o.classes}) {
  const int count = (checked_cifar_depth(o.depth) - 2) / 6;
  int64_t channels = 16;
  for (size_t i = 0; i < 3; ++i) {
    Sequential& stage = *std::array{&layer1, &layer2, &layer3}[i];
    channels = add_stage<BasicBlock>(stage, count,
                                     {.in = channels,
                                      .width = 16 << i,
                                      .stride = i == 0 ? 1 : 2,
                                      .shortcut = o.shortcut,
                                      .naming = Naming::kCifar});
  }
  apply([](Module& m) {
    const init::KaimingOptions he{.nonlinearity = init::Nonlinearity::kLeakyRelu};
    if (auto* conv = dynamic_cast<Conv2d*>(&m)) init::kaiming_normal_(conv->weight, he);
    if (auto* last = dynamic_cast<Linear*>(&m)) init::kaiming_normal_(last->weight, he);
  });
}

Tensor CifarResNet::forward(const Tensor& x) {
  const Tensor y = layer3(layer2(layer1(bn1.relu(conv1(x)))));
  return pool_and_classify(y, linear);
}

const std::vector<std::string>& resnet_names() {
  static const std::vector<std::string> names = {"resnet8",  "resnet20",  "resnet32", "resnet44",
                                                 "resnet56", "resnet110", "resnet18", "resnet34",
                                                 "resnet50", "resnet101", "resnet152"};
  return names;
}

std::unique_ptr<Module> make_resnet(const std::string& name, const MakeResNetOptions& o) {
  std::string known;
  for (const std::string& candidate : resnet_names()) {
    known += (known.empty() ? "" : ", ") + candidate;
    if (candidate != name) continue;
    const int depth = std::stoi(name.substr(6));
    for (const Layout& layout : kLayouts) {
      if (layout.depth != depth) continue;
      return std::make_unique<ResNet>(ResNetOptions{.depth = depth,
                                                    .classes = o.classes,
                                                    .in_channels = o.in_channels,
                                                    .cifar_stem = o.cifar_stem,
                                                    .zero_init_residual = o.zero_init_residual});
    }
    return std::make_unique<CifarResNet>(CifarResNetOptions{.depth = depth,
                                                            .classes = o.classes,
                                                            .in_channels = o.in_channels,
                                                            .shortcut = o.shortcut});
  }
  tarn::detail::fail<ValueError>("make_resnet: no model '", name, "'; there are ", known);
}

}  // namespace tarn::nn::models
