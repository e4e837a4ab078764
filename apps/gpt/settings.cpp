// settings.cpp - the trainer's flags and the presets of --model.
#include "tarn/apps/gpt/settings.h"

#include <filesystem>
#include <utility>
#include <vector>

#include "tarn/apps/common/file.h"
#include "tarn/apps/common/run_dir.h"
#include "tarn/core/file.h"

namespace tarn::apps {
namespace {

void declare_data(Options& options, GptSettings& s) {
  options.group("Data");
  options
      .add("--dataset, --data", &s.data,
           "king-james (Debian's bible-kjv), a text file, token files of llm.c or nanoGPT (.bin), "
           "or a folder with train.bin and val.bin")
      .value_name("DATA")
      .not_empty();
  options.add("--val-data", &s.val_data, "text or tokens to test on")
      .value_name("FILE")
      .default_text("the end of --data")
      .not_empty();
  options.add("--val-fraction", &s.val_fraction, "share of --data that is kept for testing")
      .above(0)
      .below(1);
  options
      .add("--tokenizer", &s.tokenizer,
           "char, byte, bpe:N (learn N tokens from the text), a folder with GPT-2's vocab.json and "
           "merges.txt, or a tokenizer.json of a run; auto: char for text, else meta.json beside "
           "the tokens")
      .value_name("TOKENIZER")
      .not_empty();
}

void declare_model(Options& options, GptSettings& s) {
  options.group("Model");
  options.add("--model", &s.model, "sizes and training flags that suit them")
      .choices({"char", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"});
  options
      .add("--init-from", &s.init_from,
           "scratch, resume (the run in --out-dir), or a file of weights: safetensors of Hugging "
           "Face's GPT-2, nanoGPT or tarn-gpt, its folder, or a checkpoint of llm.c")
      .value_name("FROM")
      .not_empty();
  options
      .add("--export", &s.export_to,
           "only write the weights of --resume RUN or --init-from FILE, as --dtype: NAME.bin for "
           "llm.c, NAME.safetensors for Hugging Face, or a folder for its from_pretrained()")
      .value_name("NAME")
      .not_empty();
  options.add("--n-layer", &s.n_layer, "blocks").at_least(1).default_text("by --model");
  options.add("--n-head", &s.n_head, "attention heads").at_least(1).default_text("by --model");
  options.add("--n-embd", &s.n_embd, "width").at_least(1).default_text("by --model");
  options.add("--block-size", &s.block_size, "tokens the model sees at once")
      .at_least(1)
      .default_text("by --model");
  options.add("--dropout", &s.dropout, "chance that a value is dropped in training")
      .at_least(0)
      .below(1);
  options.add("--bias", &s.bias, "biases in linear layers and norms");
  options
      .add("--gelu", &s.gelu,
           "tanh: GPT-2's approximation, and llm.c's; exact: as in nanoGPT, also for a model that "
           "was trained with it and comes by --init-from (weights do not tell)")
      .choices({"tanh", "exact"});
}

void declare_training(Options& options, GptSettings& s) {
  options.group("Training");
  options.add("-b, --batch-size", &s.batch_size, "windows of a micro-batch, of all ranks together")
      .range(1, 1 << 20);
  options
      .add("--gradient-accumulation-steps", &s.gradient_accumulation_steps,
           "micro-batches of a step")
      .range(1, 1 << 20)  // times --batch-size and --block-size they are counted in 64 bits
      .default_text("by --model");
  options.add("--max-iters", &s.max_iters, "steps").at_least(1).default_text("by --model");
  options.add("--lr, --learning-rate", &s.learning_rate, "AdamW's, after the warm-up")
      .above(0)
      .default_text("by --model");
  options
      .add("--lr-base-size", &s.lr_base_size,
           "the windows of a step that --lr and --min-lr are meant for: the rates grow with "
           "--batch-size times --gradient-accumulation-steps over this; 0: as they are")
      .at_least(0);
  options.add("--decay-lr", &s.decay_lr, "warm-up, then a cosine down to --min-lr; else constant");
  options.add("--warmup-iters", &s.warmup_iters, "steps of warm-up")
      .at_least(0)
      .default_text("by --model");
  options.add("--lr-decay-iters", &s.lr_decay_iters, "step at which --min-lr is reached")
      .at_least(0)
      .default_text("--max-iters");
  options.add("--min-lr", &s.min_lr, "the last rate").at_least(0).default_text("by --model");
  options.add("--wd, --weight-decay", &s.weight_decay, "of matrices; vectors do not decay")
      .at_least(0);
  options.add("--beta1", &s.beta1, "AdamW's").at_least(0).below(1);
  options.add("--beta2", &s.beta2, "AdamW's").at_least(0).below(1).default_text("by --model");
  options.add("--grad-clip", &s.grad_clip, "largest norm of all gradients; 0: no limit")
      .at_least(0);
  options
      .add("--dtype", &s.dtype,
           "what products are computed in; weights stay float32 (float16: with a "
           "loss scale; slow on a CPU)")
      .choices({"float32", "bfloat16", "float16"});
  options.add("--grad-checkpoint", &s.grad_checkpoint,
              "keep only the inputs of blocks and compute the rest again: less memory");
  options.group("Evaluation");
  options
      .add("--eval-interval", &s.eval_interval,
           "steps between estimates of the losses, samples and checkpoints")
      .at_least(1)
      .default_text("by --model");
  options.add("--eval-iters", &s.eval_iters, "batches of an estimate")
      .at_least(1)
      .default_text("by --model");
  options.add("--log-interval", &s.log_interval, "steps between lines in train.log").at_least(1);
  options.add("--eval-only", &s.eval_only, "only estimate the losses");
}

void declare_text(Options& options, GptSettings& s) {
  options.group("Text");
  options.add("--sample", &s.sample, "only write text, with --resume RUN or --init-from FILE");
  options.add("--start", &s.start, "text to go on from, or FILE:path").value_name("TEXT");
  options.add("--num-samples", &s.num_samples, "how many texts").at_least(1);
  options.add("--max-new-tokens", &s.max_new_tokens, "tokens of a text").at_least(1);
  options
      .add("--temperature", &s.temperature, "below 1 likely, above 1 surprising; 0: the likeliest")
      .at_least(0);
  options.add("--top-k", &s.top_k, "draw from the k most likely tokens; 0: all").at_least(0);
  options.add("--top-p", &s.top_p, "draw from the fewest tokens with this probability")
      .above(0)
      .at_most(1);
  options.add("--kv-cache", &s.kv_cache, "keep keys and values; without, every token costs more");
  options
      .add("--sample-tokens", &s.sample_tokens,
           "while training, show so many tokens of text at every estimate; 0: none")
      .at_least(0);
}

void declare_run(Options& options, GptSettings& s) {
  options.group("Run");
  options
      .add("--device", &s.device,
           "cpu, cuda, cuda:<i>, or auto: the first GPU if there is one, else the cpu; of several "
           "ranks each takes a GPU of its own")
      .value_name("DEVICE");
  options.add("--allow-tf32", &s.allow_tf32,
              "on a GPU: matrix products with inputs rounded to 10 bits, faster");
  options.add("--threads", &s.threads, "threads of the kernels; 0: all cores").range(0, 1024);
  options.add("--output-dir, --out-dir", &s.out_dir, "the run's folder")
      .value_name("DIR")
      .default_text("runs/MODEL-DATA-TIME");
  options
      .add("--resume", &s.resume,
           "go on in this run folder; flags not given are those of the run, and with the same "
           "flags the losses are those of a run that was never stopped")
      .value_name("RUN")
      .not_empty();
  declare_checkpoint_flags(options, s.checkpoints);
  options.add("--seed", &s.seed, "of initialisation, batches, dropout and text").at_least(0);
  options.add("--progress", &s.progress,
              "progress bars (on a terminal; elsewhere a line every 10 s)");
  declare_rank_flags(options, s.ranks);
  options.epilog(
      "Examples:\n"
      "  tarn-gpt                                      a small model on the King James Bible\n"
      "  tarn-gpt --data FILE.txt --max-iters 5000     on a text of yours\n"
      "  tarn-gpt --resume runs/NAME                   after Ctrl-C, or for more --max-iters\n"
      "  tarn-gpt --sample --resume runs/NAME --start 'And God'\n"
      "  tarn-run --nproc 2 tarn-gpt                   two processes, as one would train\n"
      "  tarn-gpt --sample --init-from model.safetensors --tokenizer VOCABFOLDER --start Hello\n"
      "  tarn-gpt --resume runs/NAME --export gpt.bin  for llm.c\n"
      "\n"
      "A run writes config.json, args.txt, tokenizer.json, metrics.jsonl, train.log,\n"
      "plots/{loss,lr}.{svg,png}, samples/ and checkpoints/{last,best}. Ctrl-C,\n"
      "SIGTERM and SIGHUP save and end with exit code 0. Other exit codes: 1 for an\n"
      "error, 2 for a command line that cannot be run.");
}

// A run reads its text with the tokenizer it has kept: another one's ids would mean other words to
// the model.
void check_tokenizer_of_run(const GptSettings& s) {
  const std::filesystem::path own = std::filesystem::path(*s.resume) / "tokenizer.json";
  const std::string was = flag_of_run(*s.resume, "tokenizer"), now = whole_path(s.tokenizer);
  const bool same = now == was || now == "auto" || (now == "char" && was == "auto");
  if (same || was.empty() || !is_there(own.string())) return;
  throw UsageError("--tokenizer " + s.tokenizer + ": the run goes on with its own, " +
                   own.string() + " (" + was + "); leave --tokenizer out");
}

}  // namespace

void declare_flags(Options& options, GptSettings& s) {
  declare_data(options, s);
  declare_model(options, s);
  declare_training(options, s);
  declare_text(options, s);
  declare_run(options, s);
  declare_memory_flags(options, s.memory);
  declare_profile_flags(options, s.measure);
}

void apply_preset(Options& options, const GptSettings& s) {
  if (s.model == "char") return;  // the defaults of the flags
  std::vector<std::pair<const char*, const char*>> values{
      {"--block-size", "1024"},   {"--gradient-accumulation-steps", "40"},
      {"--max-iters", "600000"},  {"--learning-rate", "6e-4"},
      {"--min-lr", "6e-5"},       {"--beta2", "0.95"},
      {"--warmup-iters", "2000"}, {"--eval-interval", "2000"},
      {"--eval-iters", "200"}};
  const auto size = [&](const char* layers, const char* heads, const char* width) {
    values.insert(values.end(), {{"--n-layer", layers}, {"--n-head", heads}, {"--n-embd", width}});
  };
  if (s.model == "gpt2") size("12", "12", "768");
  if (s.model == "gpt2-medium") size("24", "16", "1024");
  if (s.model == "gpt2-large") size("36", "20", "1280");
  if (s.model == "gpt2-xl") size("48", "25", "1600");
  for (const auto& [name, value] : values) options.preset(name, value);
}

void check_settings(const GptSettings& s, const Options* options) {
  if (options && options->given("--out-dir")) {
    if (!s.resume) check_run_name("--out-dir", s.out_dir);
    if (options->given("--resume")) {
      throw UsageError(
          "--out-dir is for a new run, and --resume goes on in an old one; leave one of them out");
    }
  }
  if (s.resume && options && options->given("--tokenizer")) check_tokenizer_of_run(s);
  if (s.resume && s.init_from != "scratch" && s.init_from != "resume") {
    throw UsageError("--init-from and --resume both say where the weights come from; pass one");
  }
  if (s.init_from == "resume" && !s.resume) {
    throw UsageError("--init-from resume needs --out-dir RUN, the folder of the run to go on with");
  }
  if ((s.sample || s.eval_only || s.export_to) && !s.resume && !s.from_file()) {
    const char* flag = s.sample ? "--sample" : s.eval_only ? "--eval-only" : "--export";
    throw UsageError(std::string(flag) + " needs weights: pass --resume RUN or --init-from FILE");
  }
  const bool only_uses = s.sample || s.eval_only || s.export_to;
  for (const char* flag :
       {"--n-layer", "--n-head", "--n-embd", "--block-size", "--bias", "--gelu"}) {
    if (!only_uses || !s.resume || !options || !options->given(flag)) continue;
    throw UsageError(std::string(flag) + ": the model is that of the run " + *s.resume +
                     "; leave the flag out");
  }
  if (s.resume && options && options->given("--model")) {
    const std::string was = flag_of_run(*s.resume, "model");
    if (!was.empty() && was != s.model) {
      throw UsageError("--model " + s.model + ": the model is that of the run " + *s.resume + ", " +
                       was + "; leave the flag out");
    }
  }
  if (s.export_to && (s.sample || s.eval_only)) {
    throw UsageError(std::string("--export writes weights and ends; it does not go with ") +
                     (s.sample ? "--sample" : "--eval-only"));
  }
  if (s.export_to && s.export_to->ends_with(".bin") && s.dtype == "float16") {
    throw UsageError("--export " + *s.export_to +
                     ": checkpoints of llm.c hold float32 or bfloat16; pass one with --dtype");
  }
  // Those of weights are checked once they are read.
  if (!s.from_file() && s.n_embd % s.n_head != 0) {
    throw UsageError("--n-embd must be a multiple of --n-head; got " + std::to_string(s.n_embd) +
                     " and " + std::to_string(s.n_head));
  }
}

}  // namespace tarn::apps
