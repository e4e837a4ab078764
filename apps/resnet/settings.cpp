// settings.cpp - the trainer's flags.
#include "tarn/apps/resnet/settings.h"

#include "tarn/apps/common/run_dir.h"
#include "tarn/nn/models/resnet.h"

namespace tarn::apps {
namespace {

constexpr int64_t kMostPixels = 1 << 14;  // of a side
// Times the batches of an epoch, or the images of a batch, they are counted in 64 bits.
constexpr double kMostEpochs = 1e9, kMostBatches = 1 << 20;

}  // namespace

void declare_flags(Options& options, ResnetSettings& s) {
  options.group("Data");
  options
      .add("--data-path", &s.data,
           "fashion-mnist, mnist:DIR, fashion-mnist:DIR, cifar10:DIR (binary version), or "
           "imagefolder:DIR (DIR/CLASS/*.jpg, or DIR/train and DIR/val)")
      .value_name("DATA");
  options.add("-b, --batch-size", &s.batch_size, "images per step, of all ranks together")
      .range(1, 1 << 20);
  options.add("-j, --workers", &s.workers, "threads that prepare batches; 0: none").range(0, 1024);
  options.add("--train-crop-size", &s.train_crop_size, "imagefolder: size of training crops")
      .range(1, kMostPixels);
  options.add("--val-resize-size", &s.val_resize_size, "imagefolder: shorter side before the crop")
      .range(1, kMostPixels);
  options.add("--val-crop-size", &s.val_crop_size, "imagefolder: size of test crops")
      .range(1, kMostPixels);
  options.add("--augment", &s.augment, "random crops and flips in training");
  options.add("--random-erase", &s.random_erase, "chance that a rectangle is erased, in training")
      .range(0, 1);
  options.add("--skip-unreadable", &s.skip_unreadable,
              "leave out images that do not decode; a step of which none does makes no update");
  options.add("--limit", &s.limit, "train on the first N images only; 0: all").at_least(0);

  options.group("Model");
  options.add("--model", &s.model, "the network").choices(nn::models::resnet_names());
  options
      .add("--stem", &s.stem,
           "resnet18 and larger: cifar (3x3, no pooling) or imagenet (7x7); auto: by image size")
      .choices({"auto", "cifar", "imagenet"});
  options
      .add("--shortcut", &s.shortcut,
           "resnet8 to resnet110: A (zero padding) or B (1x1 convolution)")
      .choices({"A", "B"});
  options.add("--zero-init-residual", &s.zero_init_residual, "start every block as the identity");
  options.add("--weights", &s.weights, "start from these weights (safetensors)")
      .value_name("FILE")
      .not_empty();

  options.group("Training");
  options.add("--epochs", &s.epochs, "passes over the training images").range(1, kMostEpochs);
  options.add("--start-epoch", &s.start_epoch, "start as if so many epochs were done")
      .range(0, kMostEpochs);
  options
      .add("--gradient-accumulation-steps", &s.gradient_accumulation_steps,
           "batches whose gradients make one step")
      .range(1, kMostBatches);
  options.add("--opt", &s.optimizer, "optimizer").choices({"sgd", "adam", "adamw"});
  options.add("--lr", &s.lr, "learning rate (its peak, with onecycle)").above(0);
  options
      .add("--lr-base-size", &s.lr_base_size,
           "the images of a step that --lr is meant for: the rate is --lr times --batch-size times "
           "--gradient-accumulation-steps over this (linear scaling); 0: --lr as it is")
      .at_least(0);
  options
      .add("--momentum", &s.momentum, "of SGD; with onecycle it goes 0.05 down and up around this")
      .at_least(0)
      .below(1);
  options.add("--nesterov", &s.nesterov, "Nesterov momentum");
  options.add("--wd, --weight-decay", &s.weight_decay, "weight decay").at_least(0);
  options.add("--norm-weight-decay", &s.norm_weight_decay, "weight decay of norms and biases")
      .at_least(0)
      .default_text("as --wd");
  options
      .add("--label-smoothing", &s.label_smoothing, "share of the target spread over all classes")
      .at_least(0)
      .below(1);
  options.add("--clip-grad-norm", &s.clip_grad_norm, "largest norm of all gradients; 0: no limit")
      .at_least(0);
  options.add("--lr-scheduler", &s.scheduler, "how the learning rate changes after the warm-up")
      .choices({"onecycle", "steplr", "cosineannealinglr", "exponentiallr", "constant"});
  options.add("--lr-warmup-epochs", &s.warmup_epochs, "epochs of warm-up; 0: none")
      .range(0, kMostEpochs);
  options
      .add("--lr-warmup-method", &s.warmup_method,
           "linear: the rate rises at every step; constant: it stays low")
      .choices({"linear", "constant"});
  options.add("--lr-warmup-decay", &s.warmup_decay, "share of --lr at which the warm-up starts")
      .range(0, 1);
  options.add("--lr-step-size", &s.step_size, "steplr: epochs between steps").range(1, kMostEpochs);
  options.add("--lr-gamma", &s.gamma, "steplr, exponentiallr: factor").above(0);
  options.add("--lr-min", &s.lr_min, "cosineannealinglr: the last rate").at_least(0);
  options.add("--model-ema", &s.model_ema, "keep a running mean of the weights, and test that");
  options.add("--model-ema-decay", &s.model_ema_decay, "how much of the mean stays at an update")
      .range(0, 1);
  options.add("--model-ema-steps", &s.model_ema_steps, "steps between updates of the mean")
      .at_least(1);

  options.add("--amp", &s.amp,
              "mixed precision: products in --amp-dtype, weights and their gradients in float32");
  options
      .add("--amp-dtype", &s.amp_dtype,
           "of --amp; float16 scales the loss, and is slow on a cpu: none computes in it here")
      .choices({"bfloat16", "float16"});
  options.add(
      "--grad-checkpoint", &s.grad_checkpoint,
      "keep the inputs of blocks only, and compute the blocks again in backward: less memory, "
      "the same bits, a third more time");

  options.group("Run");
  options
      .add("--device", &s.device,
           "cpu, cuda, cuda:<i>, or auto: the first GPU if there is one, else the cpu; of several "
           "ranks each takes a GPU of its own")
      .value_name("DEVICE");
  options.add("--allow-tf32", &s.allow_tf32,
              "on a GPU: matrix products and convolutions with inputs rounded to 10 bits, faster");
  options.add("--threads", &s.threads, "threads of the kernels; 0: all cores").range(0, 1024);
  options.add("--output-dir", &s.output_dir, "where run folders are made").value_name("DIR");
  options.add("--name", &s.name, "name of the run folder")
      .value_name("NAME")
      .default_text("model, data and time");
  options
      .add(
          "--resume", &s.resume,
          "go on in this run folder; flags not given are those of the run, and with the same flags "
          "the result is the one of a run that was never stopped")
      .value_name("RUN")
      .not_empty();
  declare_checkpoint_flags(options, s.checkpoints);
  options.add("--test-only", &s.test_only,
              "only evaluate: --weights FILE, or the best checkpoint of --resume RUN");
  options.add("--seed", &s.seed, "of initialisation, order and augmentation").at_least(0);
  options.add("--print-freq", &s.print_freq, "steps between lines in train.log and metrics.jsonl")
      .at_least(1);
  options.add("--progress", &s.progress,
              "progress bars (on a terminal; elsewhere a line every 10 s)");

  declare_rank_flags(options, s.ranks);
  options.add("--sync-bn", &s.sync_bn, "batch norm over the batches of all ranks");
  declare_memory_flags(options, s.memory);
  declare_profile_flags(options, s.measure);

  options.epilog(
      "Examples:\n"
      "  tarn-resnet                                 resnet8 on Fashion-MNIST, minutes\n"
      "  tarn-resnet --model resnet20 --data-path cifar10:DIR --epochs 30\n"
      "  tarn-resnet --resume runs/NAME              after Ctrl-C, or for more --epochs\n"
      "  tarn-resnet --test-only --resume runs/NAME  scores the best checkpoint\n"
      "  tarn-run --nproc 2 tarn-resnet --sync-bn    two processes, as one would train\n"
      "\n"
      "A run writes config.json, args.txt, metrics.jsonl, train.log,\n"
      "plots/{loss,accuracy,lr}.{svg,png} and checkpoints/{last,best} into runs/NAME.\n"
      "Ctrl-C, SIGTERM and SIGHUP save and end with exit code 0. Other exit codes: 1\n"
      "for an error, 2 for a command line that cannot be run.");
}

namespace {

// What a run that goes on has already, and cannot get anew.
void check_resume(const ResnetSettings& s, const Options& options) {
  if (!s.resume) return;
  for (const char* flag : {"--name", "--output-dir", "--start-epoch"}) {
    if (!options.given(flag)) continue;
    throw UsageError(std::string(flag) + " is for a new run, and --resume goes on in an old one; " +
                     "leave one of them out");
  }
  const std::string was = flag_of_run(*s.resume, "opt");
  if (!s.test_only && options.given("--opt") && !was.empty() && was != s.optimizer) {
    throw UsageError("--opt " + s.optimizer + ": the run used " + was +
                     ", whose state does not fit another optimizer; leave --opt out");
  }
  // Two groups of parameters instead of one. A run that had it hands it on.
  if (!s.test_only && s.norm_weight_decay && flag_of_run(*s.resume, "norm-weight-decay").empty()) {
    throw UsageError(
        "--norm-weight-decay: the run had none, and the state of its optimizer does not fit "
        "parameters in two groups; leave it out (--weight-decay may change)");
  }
}

}  // namespace

void check_settings(const ResnetSettings& s, const Options* options) {
  const auto given = [&](const char* flag) { return !options || options->given(flag); };
  if (options) check_resume(s, *options);
  if (s.output_dir.empty()) throw UsageError("--output-dir: expected a folder; got ''");
  if (!s.name.empty() || (options && options->given("--name"))) check_run_name("--name", s.name);
  if (s.resume && s.weights) {
    throw UsageError("--weights and --resume both say where the weights come from; pass one");
  }
  if (s.test_only && !s.resume && !s.weights) {
    throw UsageError("--test-only needs weights to test: pass --weights FILE or --resume RUN");
  }
  if (s.nesterov && (s.optimizer != "sgd" || s.momentum == 0)) {
    throw UsageError("--nesterov needs --opt sgd and a --momentum above 0");
  }
  if (!s.amp && s.amp_dtype == "float16" && given("--amp-dtype")) {
    throw UsageError("--amp-dtype float16 does nothing without --amp; pass both");
  }
  if (s.sync_bn && s.ranks.parallel == "dp") {
    throw UsageError(
        "--sync-bn is for ranks; with --parallel dp each replica's norms see its rows");
  }
  if (s.model_ema && s.ranks.zero_stage == 3) {
    throw UsageError(
        "--model-ema keeps a copy of all weights on each rank, which --zero-stage 3 is there to "
        "avoid; pass --zero-stage 2 or less");
  }
  if (s.start_epoch >= s.epochs) {
    throw UsageError("--start-epoch must be below --epochs; got " + std::to_string(s.start_epoch) +
                     " and " + std::to_string(s.epochs));
  }
}

}  // namespace tarn::apps
