// 05_training_loop.cpp - everything a training loop does, on two spirals of points.
#include <cmath>
#include <cstdio>

#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"
#include "tarn/data/loader.h"
#include "tarn/nn/models/mlp.h"
#include "tarn/optim/adam.h"
#include "tarn/optim/schedule.h"

using namespace tarn;

// Points on two interleaved spirals, with a little noise; the class is the spiral.
data::TensorDataset spirals(int64_t n) {
  const Tensor noise = randn({n, 2}) * 0.03;
  Tensor points = empty({n, 2}), classes = empty({n}, {.dtype = DType::kI64});
  for (int64_t i = 0; i < n; ++i) {
    const double turn = 3.0 * static_cast<double>(i) / static_cast<double>(n);
    const double angle = 2 * M_PI * turn / 2 + (i % 2 ? M_PI : 0);
    points.data<float>()[2 * i] = static_cast<float>(turn / 3 * std::cos(angle));
    points.data<float>()[2 * i + 1] = static_cast<float>(turn / 3 * std::sin(angle));
    classes.data<int64_t>()[i] = i % 2;
  }
  return {points + noise, classes};
}

double accuracy(nn::Module& net, const data::DataLoader& loader) {
  const NoGradGuard no_grad;  // nothing to differentiate: nothing is recorded
  net.eval();                 // dropout and batch norm behave differently in use
  int64_t right = 0;
  for (const data::Batch& batch : loader.epoch(0)) {
    right += sum(eq(net(batch.input).argmax(1), batch.target)).item<int64_t>();
  }
  net.train();
  return 100.0 * static_cast<double>(right) / static_cast<double>(loader.examples());
}

int main() {
  manual_seed(1);
  const data::TensorDataset train_set = spirals(1000), test_set = spirals(300);
  // The order of an epoch depends on the seed and the epoch alone, not on the workers.
  const data::DataLoader train(train_set, std::make_unique<data::RandomSampler>(1000, 1),
                               {.batch_size = 50, .workers = 1});
  const data::DataLoader test(test_set, {.batch_size = 300});

  nn::models::Mlp net({.sizes = {2, 64, 64, 2}});
  optim::AdamW optimizer(net.parameters(), {.lr = 0.01, .weight_decay = 1e-4});
  constexpr int kEpochs = 30;
  optim::Scheduler schedule(optimizer, optim::warmup_cosine(20, kEpochs * train.size()));

  std::printf("before: %.1f %% of the test points right\n", accuracy(net, test));
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    double total = 0;
    for (const data::Batch& batch : train.epoch(epoch)) {
      const Tensor loss = cross_entropy(net(batch.input), batch.target);  // forward, recorded
      optimizer.zero_grad();                                              // gradients add up
      loss.backward();                                                    // fills .grad
      optimizer.step();                                                   // moves the parameters
      schedule.step();                                                    // and the learning rate
      total += loss.item();  // a number: does not keep the graph alive
    }
    if (epoch % 5 == 4) {
      std::printf("epoch %2d  lr %.5f  loss %.4f  test accuracy %.1f %%\n", epoch + 1,
                  optimizer.lr(), total / static_cast<double>(train.size()), accuracy(net, test));
    }
  }
  return accuracy(net, test) > 95 ? 0 : 1;
}
