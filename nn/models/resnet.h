// resnet.h - residual networks: torchvision's for ImageNet, and the small ones for CIFAR.
//
// Parameter names are those of torchvision and of github.com/akamaster/pytorch_resnet_cifar10, so
// published weights load as they are.
// Source: He et al. 2015, arXiv:1512.03385.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tarn/nn/conv.h"
#include "tarn/nn/linear.h"
#include "tarn/nn/norm.h"
#include "tarn/nn/sequential.h"

namespace tarn::nn::models {

/// How a block's input reaches a block's output of another size.
enum class Shortcut : uint8_t {
  kProjection,  ///< option B: a 1x1 convolution and batch norm
  kPad,         ///< option A: every other pixel, new channels zero; no parameters
};

/// The names of a CIFAR ResNet's projections differ from torchvision's.
enum class Naming : uint8_t { kTorchvision, kCifar };

struct BlockOptions {
  int64_t in = 0;
  int64_t width = 0;  ///< channels inside the block; it puts out width * expansion
  int64_t stride = 1;
  Shortcut shortcut = Shortcut::kProjection;
  Naming naming = Naming::kTorchvision;
};

/// relu(bn2(conv2(relu(bn1(conv1(x))))) + shortcut(x)), two 3x3 convolutions.
class BasicBlock final : public Module {
 public:
  using Options = BlockOptions;
  static constexpr int64_t kExpansion = 1;
  explicit BasicBlock(const Options& options);
  Tensor forward(const Tensor& x) override;

  Conv2d conv1;
  BatchNorm2d bn1;
  Conv2d conv2;
  BatchNorm2d bn2;
  std::optional<Sequential> downsample;  ///< the projection, if there is one

 private:
  Options options_;
};

/// 1x1 down to `width`, 3x3 (with the stride), 1x1 up to 4 * width.
class Bottleneck final : public Module {
 public:
  using Options = BlockOptions;
  static constexpr int64_t kExpansion = 4;
  explicit Bottleneck(const Options& options);
  Tensor forward(const Tensor& x) override;

  Conv2d conv1;
  BatchNorm2d bn1;
  Conv2d conv2;
  BatchNorm2d bn2;
  Conv2d conv3;
  BatchNorm2d bn3;
  std::optional<Sequential> downsample;
};

struct ResNetOptions {
  int depth = 18;  ///< 18, 34, 50, 101 or 152
  int64_t classes = 1000;
  int64_t in_channels = 3;
  bool cifar_stem = false;          ///< 3x3 convolution without pooling, for small pictures
  bool zero_init_residual = false;  ///< blocks begin as the identity
};

/// torchvision's ResNet. x [N, in_channels, H, W] -> [N, classes].
class ResNet final : public Module {
 public:
  using Options = ResNetOptions;
  /// Throws ValueError on an unknown depth.
  explicit ResNet(const Options& options);
  Tensor forward(const Tensor& x) override;

  Conv2d conv1;
  BatchNorm2d bn1;
  Sequential layer1{this, "layer1"}, layer2{this, "layer2"}, layer3{this, "layer3"},
      layer4{this, "layer4"};
  Linear fc;

 private:
  bool cifar_stem_;
};

struct CifarResNetOptions {
  int depth = 20;  ///< 6 n + 2: 8, 20, 32, 44, 56, 110
  int64_t classes = 10;
  int64_t in_channels = 3;
  Shortcut shortcut = Shortcut::kPad;
};

/// Three stages of n blocks with 16, 32 and 64 channels. x [N, in_channels, H, W] -> [N, classes].
class CifarResNet final : public Module {
 public:
  using Options = CifarResNetOptions;
  /// Throws ValueError unless depth = 6 n + 2.
  explicit CifarResNet(const Options& options);
  Tensor forward(const Tensor& x) override;

  Conv2d conv1;
  BatchNorm2d bn1;
  Sequential layer1{this, "layer1"}, layer2{this, "layer2"}, layer3{this, "layer3"};
  Linear linear;
};

/// "resnet8", "resnet20", ... "resnet110" (CIFAR), "resnet18", "resnet34", ... "resnet152".
const std::vector<std::string>& resnet_names();

struct MakeResNetOptions {
  int64_t classes = 1000;
  int64_t in_channels = 3;
  Shortcut shortcut = Shortcut::kPad;  ///< CIFAR networks only
  bool cifar_stem = false;             ///< the others only
  bool zero_init_residual = false;     ///< the others only
};
/// The network of that name. Throws ValueError that lists the names.
std::unique_ptr<Module> make_resnet(const std::string& name, const MakeResNetOptions& options = {});

}  // namespace tarn::nn::models
